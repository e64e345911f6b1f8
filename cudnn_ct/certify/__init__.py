"""Compare the first results of engines with a second opinion, and measure whether their bits vary."""
