"""A vision-language model as agent: it looks at a picture, writes what it sees and thinks, names an action, and learns
from what comes of it."""
