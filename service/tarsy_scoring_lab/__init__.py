"""Local stand-ins for the services around tarsy-scoring: embedded servers, a scripted judge and the demo."""
