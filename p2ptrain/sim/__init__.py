"""The ports in virtual time: a loop whose clock is a variable, a network in memory, inline compute, disks in a dict."""
