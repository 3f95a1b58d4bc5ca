"""Twenty prompts of different kinds and lengths."""

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8, 13,",
    "Q: What is the boiling point of water?\nA:",
    "The three primary colours are",
    "Dear Sir or Madam,\n\nI am writing to",
    "E = mc^2 means that",
    "Die Hauptstadt von Deutschland ist",
    "La tour Eiffel se trouve",
    "<html>\n<head>\n<title>",
    "SELECT name, age FROM",
    "Water freezes at 0 degrees Celsius. Water boils at 100 degrees Celsius. Iron melts at",
    "a",
    "The quick brown fox jumps over the lazy dog. " * 6,
    "Shakespeare wrote Hamlet, Macbeth and",
    "To make bread you need flour, water, salt and",
    "I think, therefore",
    '{"name": "Ada", "born": 1815, "field": "',
    "In 1969 the first humans landed on the Moon. They travelled in a spacecraft called Apollo 11. "
    "The commander was Neil Armstrong. The second person to walk on the Moon was",
)
