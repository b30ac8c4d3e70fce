"""Tables as text, Markdown and HTML, for all tools, benchmarks and layers."""
