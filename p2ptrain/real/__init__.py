"""The ports on a real machine: uvloop, sockets, TLS, threads, a disk."""
