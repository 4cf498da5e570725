// The contrast (WCAG 2) of every text that is seen, with the colour behind it: [{text, contrast}]. Texts over pictures
// have a plate of their own, and are measured against that alone where it is opaque enough.
(() => {
  const parse = (css) => {
    const [r, g, b, a = 1] = css.match(/[\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = (front, back) => {
    const a = front[3];
    return [0, 1, 2].map((i) => front[i] * a + back[i] * (1 - a)).concat(1);
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((v) => {
      const c = v / 255;
      return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const chain = [];
    for (let e = element; e; e = e.parentElement) chain.unshift(parse(getComputedStyle(e).backgroundColor));
    return chain.reduce((back, front) => over(front, back), [255, 255, 255, 1]);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    const box = element.getBoundingClientRect();
    if (!text || element.closest("script, style, .unseen, .bar-box, title") || !box.width || !box.height) continue;
    const style = getComputedStyle(element);
    if (style.visibility === "hidden") continue;
    const ink = parse(element instanceof SVGElement ? style.fill : style.color);
    const back = behind(element);
    const [high, low] = [luminance(over(ink, back)), luminance(back)].sort((a, b) => b - a);
    found.push({ text: text.slice(0, 60), contrast: (high + 0.05) / (low + 0.05) });
  }
  return found;
})()
