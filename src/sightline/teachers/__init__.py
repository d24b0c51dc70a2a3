"""Teachers: encoder, scripted, chat (a vision-language model) and human."""
