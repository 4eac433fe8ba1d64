"""hivemind's Kademlia over our sessions: the only package that imports hivemind.

`DHTNode` runs in our event loop. It needs little of its P2P object (add a handler, remove one, call one), and that
little is sessions.py, so no libp2p daemon ever starts. hivemind trusts what it receives; nothing reaches it unchecked:

* A node id is the hash of the peer id that the session proved, so nobody can choose a place or speak for another.
* A contact enters the routing table only after it answered a request of ours. Requests do not add their sender.
* Values are signed records under their own key, with a finite and capped expiry (hivemind accepts an expiry at
  infinity, and lets one bad entry hide a whole dictionary). They travel as plain fields, one by one.
* Answers name peers without addresses (libp2p would find them in a DHT of its own): signed address records come along.
* Storage is bounded: hivemind's heap keeps an entry for every store until that expires.
* Caches, request sharing, the black list and the routing table's own refresh are off: they leak, can be pinned by a
  stranger, or fail (hivemind 1.1.12, dht/node.py:806). Members' liveness keeps the table clean instead.

Its clock and chance are the peer's, so it runs in virtual time as well, and its tasks end with the peer's DHT node
(ports.py). The import takes two seconds and brings torch: discovery/directory.py does it on a worker thread.
"""

from hivemind.utils.logging import use_hivemind_log_handler

from p2ptrain.discovery.kademlia.node import Kademlia
from p2ptrain.discovery.kademlia.ports import take_ports

__all__ = ["Kademlia"]

take_ports()
use_hivemind_log_handler("nowhere")  # it prints to stderr and stops propagation otherwise
