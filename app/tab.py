"""The browser tab: its secret lies in its own `sessionStorage`, which a reload keeps and a link does not carry.

A duplicated tab begins with a copy of that storage. It asks whether the secret is held already, and draws its own.
"""

from typing import NamedTuple

import streamlit as st

SCRIPT = """
const NAME = "planner_tab";
const WAIT_MS = 250;  // a tab answers within some milliseconds, unless it is drawing

export default function ({ data, setStateValue }) {
  if (data.isKnown) return;
  // Asked once for each document: the page asks again when its server was started anew.
  window.plannerTab ??= claim();
  window.plannerTab.then((told) => setStateValue("told", told));
}

async function claim() {
  // Locks would be shorter, but browsers have them over HTTPS and on localhost only.
  const channel = new BroadcastChannel(NAME);
  const stored = sessionStorage.getItem(NAME);
  const isKept = stored !== null && !(await isHeld(channel, stored));
  const secret = isKept ? stored : draw();
  sessionStorage.setItem(NAME, secret);
  channel.onmessage = ({ data }) => {
    if (data.asked === secret) channel.postMessage({ held: secret });
  };
  return { secret, origin: stored ?? secret };
}

function isHeld(channel, secret) {
  return new Promise((resolve) => {
    channel.onmessage = ({ data }) => {
      if (data.held === secret) resolve(true);
    };
    channel.postMessage({ asked: secret });
    setTimeout(() => resolve(false), WAIT_MS);
  });
}

function draw() {
  const drawn = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(drawn, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
"""

_component = st.components.v2.component("planner_tab", js=SCRIPT)


class Told(NamedTuple):
    """What a tab says of itself; a browser may say anything."""

    secret: object
    """Names its session."""
    origin: object
    """Names the session that it begins with: its own before a reload, or that of the tab it was duplicated from."""


def ask(is_known: bool) -> Told | None:
    """What the tab says; None until it has answered, and where no browser is."""
    with st.container(key="tab"):
        told = _component(key="tab_secret", data={"isKnown": is_known}, on_told_change=lambda: None).told
    return Told(told.get("secret"), told.get("origin")) if isinstance(told, dict) else None
