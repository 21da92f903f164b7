"""The browser tab: its secret lies in its own `sessionStorage`, which a reload keeps and a link does not carry."""

import streamlit as st

SCRIPT = """
export default function ({ data, setStateValue }) {
  if (data.isKnown) return;
  const name = "planner_tab";
  let secret = sessionStorage.getItem(name);
  if (secret === null) {
    const drawn = crypto.getRandomValues(new Uint8Array(16));
    secret = Array.from(drawn, (byte) => byte.toString(16).padStart(2, "0")).join("");
    sessionStorage.setItem(name, secret);
  }
  setStateValue("secret", secret);
}
"""

_component = st.components.v2.component("planner_tab", js=SCRIPT)


def ask_secret(is_known: bool) -> object:
    """What the tab calls its secret; None until it has answered, and where no browser is."""
    with st.container(key="tab"):
        return _component(key="tab_secret", data={"isKnown": is_known}, on_secret_change=lambda: None).secret
