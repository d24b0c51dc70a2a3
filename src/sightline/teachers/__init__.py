"""Who answers: an encoder, a script, a vision-language model that chats, people."""
