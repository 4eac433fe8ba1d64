"""Bytes on the wire: frames, messages, tensor codecs. Pure: nothing here knows a socket or a clock."""
