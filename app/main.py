"""The page table: start with `streamlit run app/main.py`."""

import sys
from contextlib import nullcontext

import streamlit as st

from app.pages import PAGES

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
/* It indents every column head but the first, and every cell but the first two. */
.stTable tbody th + td {padding-left: 16px !important}
/* Who presses Plan half down the page sees how far it is. */
div:has(> .st-key-progress) {position: sticky; top: 3.75rem; z-index: 9}
.st-key-progress {background: Canvas; padding: 0.5rem 0}
/* It does not show which page's name the keyboard is on. */
.stAppHeader a:focus-visible {outline: 2px solid #2A85C7 !important; outline-offset: -2px}
/* It draws nothing. */
.st-key-tab {position: absolute}
</style>"""

st.set_page_config(page_title="vLLM Capacity Planner", page_icon="📈", layout="wide")
st.html(STYLE)
page = st.navigation(
    [
        st.Page(PAGES["trace"], title="Trace", icon=":material/upload_file:", default=True),
        st.Page(PAGES["calibration"], title="Calibration", icon=":material/straighten:"),
        st.Page(PAGES["plan"], title="Plan", icon=":material/insights:"),
        st.Page(PAGES["inspect"], title="Inspect", icon=":material/troubleshoot:"),
        st.Page(PAGES["export"], title="Export", icon=":material/download:"),
        st.Page(PAGES["method"], title="Method", icon=":material/school:"),
    ],
    position="top",
)
with nullcontext() if "app.panels" in sys.modules else st.spinner("Loading the planner …"):
    # Not at the top: the first visitor of a server sees where he is before these have been loaded.
    from app import compute, panels, state, tab
compute.compiler()
if state.follow(tab.ask(state.is_followed())):
    st.rerun()
panels.show_strip()
page.run()
