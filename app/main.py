"""The page table: start with `streamlit run app/main.py`."""

import streamlit as st

from app import compute, panels, state, tab

STYLE = """<style>
/* Streamlit leaves a hand's breadth above the page; the verdict is to be on the first screen. */
.stMainBlockContainer {padding-top: 4rem; padding-bottom: 3rem}
/* Columns that would be too narrow for what is in them go below each other. */
.stColumn:has(.stPlotlyChart), .stColumn:has(.stTable) {min-width: min(23rem, 100%)}
.stColumn:has(.stMetric) {min-width: 12rem}
.stColumn:has(.stNumberInput) {min-width: 10rem}
.stColumn:has(.stFileUploader) {min-width: min(18rem, 100%)}
.st-key-strip .stColumn {min-width: 16rem}
/* Streamlit wraps cells at 400 pixels, however much room there is. */
.stTable td [data-testid="stMarkdownContainer"] {max-width: none}
/* It draws nothing. */
.st-key-tab {position: absolute}
</style>"""

st.set_page_config(page_title="vLLM Capacity Planner", page_icon="📈", layout="wide")
st.html(STYLE)
page = st.navigation(
    [
        st.Page(panels.PAGES["trace"], title="Trace", icon=":material/upload_file:", default=True),
        st.Page(panels.PAGES["calibration"], title="Calibration", icon=":material/straighten:"),
        st.Page(panels.PAGES["plan"], title="Plan", icon=":material/insights:"),
        st.Page(panels.PAGES["inspect"], title="Inspect", icon=":material/troubleshoot:"),
        st.Page(panels.PAGES["export"], title="Export", icon=":material/download:"),
        st.Page(panels.PAGES["method"], title="Method", icon=":material/school:"),
    ],
    position="top",
)
compute.compiler()
if state.follow(tab.ask_secret(state.is_followed())):
    st.rerun()
panels.show_strip()
page.run()
