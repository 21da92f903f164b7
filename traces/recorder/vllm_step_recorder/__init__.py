"""Records a live vLLM server. Read `plugin.py` (what vLLM loads), `rows.py` (what is recorded), `writer.py` (how)."""
