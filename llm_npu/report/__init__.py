"""Tables as text, Markdown and HTML, for all tools and benchmarks."""
