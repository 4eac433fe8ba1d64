"""How peers find each other: signed records, a partial view kept by gossip, and hivemind's Kademlia underneath."""
