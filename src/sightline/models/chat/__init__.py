"""Vision-language models that chat: one request of text and pictures, one reply, whatever the provider."""
