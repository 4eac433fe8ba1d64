"""p2ptrain trains neural networks on volunteers' machines over the internet, with no master."""

__version__ = "0.1.0"
