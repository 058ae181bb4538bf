"""What a session can run: the text model of the port step by step, and any module or callable of the user."""
