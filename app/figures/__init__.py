"""Charts: results in, `go.Figure` out; nothing here knows about Streamlit."""
