"""The hunt: many seeds, each a swarm in trouble at chosen moments, judged from outside; failures shrunk to a scenario."""
