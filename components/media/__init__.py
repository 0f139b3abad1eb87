"""Files of clients -> arrays. Every function here computes: call it in a thread, never on the event loop."""
