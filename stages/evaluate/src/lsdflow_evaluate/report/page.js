"use strict";
const fade = document.getElementById("fade");
if (fade) {
  fade.parentElement.hidden = false;
  fade.addEventListener("input", () => document.documentElement.style.setProperty("--labels", fade.value));
}
if (navigator.clipboard) {
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      navigator.clipboard.writeText(document.getElementById(button.dataset.copy).innerText).then(() => { button.textContent = "copied"; });
    });
  }
}
