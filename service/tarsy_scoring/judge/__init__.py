"""How a session is judged: criteria, the calls, what the answers say."""
