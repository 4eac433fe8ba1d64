"""How much of the time that machines offer becomes training: the failure study of the paper, and of volunteers.

    published.py      the numbers of the paper (Decoupled DiLoCo, arXiv:2604.21428)
    failures.py       chips fail, learners pause: the paper's table of goodput
    heterogeneity.py  learners of different speed: who is waited for
    scavenging.py     chips that are there for half of the work only
    sessions.py       when volunteers are on
    all_reduce.py     volunteers in a synchronous swarm
    volunteers.py     volunteers with p2ptrain's own peers, in virtual time
    hivemind.py       volunteers with hivemind's own matchmaking, in virtual time
    study.py          all of it in order, within a budget; tables.py, report.py say it

All but the last two ways are event simulations of a few hundred lines on `timeline.py`, and need no peers.
"""
