"""The page table: start with `streamlit run app/main.py`."""

import streamlit as st

from app import compute, panels

st.set_page_config(page_title="vLLM Capacity Planner", page_icon="📈", layout="wide")
# Streamlit leaves a hand's breadth above the page; the verdict is to be on the first screen.
st.html("<style>.stMainBlockContainer {padding-top: 4rem; padding-bottom: 3rem}</style>")
page = st.navigation(
    [
        st.Page(panels.PAGES["trace"], title="Trace", icon=":material/upload_file:", default=True),
        st.Page(panels.PAGES["calibration"], title="Calibration", icon=":material/straighten:"),
        st.Page(panels.PAGES["plan"], title="Plan", icon=":material/insights:"),
        st.Page(panels.PAGES["inspect"], title="Inspect", icon=":material/troubleshoot:"),
        st.Page(panels.PAGES["export"], title="Export", icon=":material/download:"),
    ],
    position="top",
)
compute.compiler()
panels.show_strip()
page.run()
