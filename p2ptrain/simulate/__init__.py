"""A swarm of real peer processes on one machine: started, disturbed on purpose, observed from outside, and judged."""
