"use strict";
const fade = document.getElementById("fade");
if (fade) {
  fade.parentElement.hidden = false;
  fade.addEventListener("input", () => document.documentElement.style.setProperty("--labels", fade.value));
}
const copy = document.getElementById("copy");
if (copy && navigator.clipboard) {
  copy.hidden = false;
  copy.addEventListener("click", () => {
    navigator.clipboard.writeText(document.getElementById("state").textContent).then(() => { copy.textContent = "copied"; });
  });
}
