"use strict";
/* What makes the page answer: every thing that can be selected has data-of (steps, values or
   weights) and data-n, its number in the tables and in the details. Texts are set as text. */

const all = (root, selector) => [...root.querySelectorAll(selector)];
const key = (element) => element.dataset.of + " " + element.dataset.n;

for (const sheet of all(document, ".sheet")) start(sheet);
searching(document.querySelector("input[type=search]"), document.querySelector(".found"));

function start(sheet) {
  const details = JSON.parse(sheet.querySelector(".details").textContent);
  const things = new Map();
  for (const element of all(sheet, "[data-n]")) {
    if (!things.has(key(element))) things.set(key(element), []);
    things.get(key(element)).push(element);
  }
  const panel = sheet.querySelector("aside");
  const select = (of, number) => {
    for (const element of all(sheet, ".selected, .near, .on")) {
      element.classList.remove("selected", "near", "on");
    }
    panel.hidden = number === null;
    if (number === null) return;
    const own = things.get(of + " " + number) || [];
    for (const element of own) element.classList.add("selected");
    for (const box of own.filter((e) => e.dataset.box)) neighbours(box);
    show(panel.querySelector("div"), sheet, details, of, number, select);
  };
  sheet.addEventListener("click", (event) => {
    const found = event.target.closest("[data-n]");
    if (found && !found.closest("aside")) select(found.dataset.of, Number(found.dataset.n));
  });
  panel.querySelector(".close").addEventListener("click", () => select("", null));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") select("", null);
  });
  for (const choice of all(sheet, ".choices input")) {
    choice.addEventListener("change", () => {
      sheet.classList.remove("by-time", "by-peak", "by-kind");
      sheet.classList.add("by-" + choice.value);
    });
  }
  for (const table of all(sheet, "table[data-of]")) sorting(table);
  for (const frame of all(sheet, ".frame")) zooming(frame);
}

function neighbours(box) {
  const [svg, own] = [box.closest("svg"), box.dataset.box];
  for (const path of all(svg, `.edges [data-a="${own}"], .edges [data-b="${own}"]`)) {
    path.classList.add("on");
    path.parentNode.append(path);
    const other = path.dataset.a === own ? path.dataset.b : path.dataset.a;
    svg.querySelector(`[data-box="${other}"]`).classList.add("near");
  }
}

/* The panel: what the row of the table has, then links to other things, then texts. */
function show(place, sheet, details, of, number, select) {
  const add = (parent, tag, text) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  };
  const found = details[of][number];
  place.replaceChildren();
  add(place, "h2", found.name);
  const row = sheet.querySelector(`tr[data-of="${of}"][data-n="${number}"]`);
  const titles = all(row.closest("table"), "th").map((title) => title.textContent);
  const list = add(place, "dl");
  all(row, "td").forEach((cell, column) => {
    if (cell.textContent && column > 1 && titles[column] !== "computes") {
      add(list, "dt", titles[column]);
      add(list, "dd", cell.textContent);
    }
  });
  for (const [title, [kind, numbers]] of Object.entries(found.links)) {
    if (!numbers.length) continue;
    add(place, "h3", title);
    const items = add(place, "ul");
    for (const n of numbers) {
      const link = add(add(items, "li"), "button", details[kind][n].name);
      link.className = "find";
      link.addEventListener("click", () => {
        select(kind, n);
        reveal(sheet, kind, n);
      });
    }
  }  for (const [title, texts] of Object.entries(found.texts)) {
    if (texts.length) {
      add(place, "h3", title);
      add(place, "pre", texts.join("\n"));
    }
  }
}

function reveal(sheet, of, number) {
  const box = sheet.querySelector(`.box[data-of="${of}"][data-n="${number}"]`);
  if (box) box.closest("svg").dispatchEvent(new CustomEvent("reveal", { detail: box }));
}

function sorting(table) {
  all(table, "th").forEach((title, column) => {
    title.addEventListener("click", () => {
      const down = title.getAttribute("aria-sort") === "descending" ? 1 : -1;
      for (const other of all(table, "th")) other.removeAttribute("aria-sort");
      title.setAttribute("aria-sort", down < 0 ? "descending" : "ascending");
      const value = (row) => {
        const cell = row.cells[column];
        return "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent ? cell.textContent : null;
      };
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => [value(row), row]);
      // What has no value is last in either order.
      rows.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null);
        return down * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
      });
      body.append(...rows.map(([, row]) => row));
    });
  });
}

function searching(field, found) {
  const rows = all(document, "tbody tr[data-n]").map((row) => [row.textContent.toLowerCase(), row]);
  let waiting = 0;
  const search = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const sheet of all(document, ".sheet")) {
      const hits = new Set();
      for (const [text, row] of rows) {
        if (!sheet.contains(row)) continue;
        const hit = words.every((word) => text.includes(word));
        row.hidden = !hit;
        if (hit) hits.add(key(row));
      }
      count += hits.size;
      for (const element of all(sheet, "svg [data-n]")) {
        element.classList.toggle("dim", words.length > 0 && !hits.has(key(element)));
      }
    }
    found.textContent = words.length ? count + " found" : "";
  };
  field.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(search, 120);
  });
  const first = () => {
    const box = document.querySelector(".box.steps[data-n]:not(.dim)");
    if (box) box.closest("svg").dispatchEvent(new CustomEvent("reveal", { detail: box }));
  };
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    search();
    first();
  });
  for (const button of all(document, "[data-find]")) {
    button.addEventListener("click", (event) => {
      event.preventDefault();
      field.value = button.dataset.find;
      search();
      first();
    });
  }
}

/* Moving and zooming a drawing, by its viewBox. */
function zooming(frame) {
  const svg = frame.querySelector("svg");
  const whole = svg.getAttribute("viewBox").split(" ").map(Number);
  let [x, y, width, height] = whole;
  const set = () => {
    svg.setAttribute("viewBox", [x, y, width, height].join(" "));
    const scale = Math.min(svg.clientWidth / width, svg.clientHeight / height);
    svg.classList.toggle("far-away", scale < 0.22);
  };
  const zoom = (factor, atX = x + width / 2, atY = y + height / 2) => {
    const least = whole[2] / 400, most = whole[2] * 2;
    factor = Math.min(Math.max(width * factor, least), most) / width;
    x = atX - (atX - x) * factor;
    y = atY - (atY - y) * factor;
    width *= factor;
    height *= factor;
    set();
  };
  const place = (event) => {
    const point = new DOMPoint(event.clientX, event.clientY);
    return point.matrixTransform(svg.getScreenCTM().inverse());
  };
  const centre = (px, py, scale) => {
    width = svg.clientWidth / scale;
    height = svg.clientHeight / scale;
    x = px - width / 2;
    y = py - height / 2;
    set();
  };
  svg.setAttribute("tabindex", "0");
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== svg) return;
    event.preventDefault();
    const at = place(event);
    zoom(Math.exp(event.deltaY / 400), at.x, at.y);
  }, { passive: false });
  let from = null, moved = false;
  svg.addEventListener("pointerdown", (event) => {
    if (event.button === 0) [from, moved] = [place(event), false];
  });
  svg.addEventListener("pointermove", (event) => {
    if (!from) return;
    const at = place(event);
    const far = Math.hypot(at.x - from.x, at.y - from.y) * svg.clientWidth / width;
    if (!moved && far < 4) return;
    if (!moved) svg.setPointerCapture(event.pointerId);
    moved = true;
    x += from.x - at.x;
    y += from.y - at.y;
    set();
  });
  svg.addEventListener("pointerup", () => { from = null; });
  svg.addEventListener("pointercancel", () => { from = null; });
  // The wheel moves the page again.
  svg.addEventListener("pointerleave", () => svg.blur());
  window.addEventListener("beforeprint", () => {
    [x, y, width, height] = whole;
    set();
  });
  // What was dragged is not selected.
  svg.addEventListener("click", (event) => { if (moved) event.stopPropagation(); }, true);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (step) [x, y] = [x + step[0] * width / 8, y + step[1] * height / 8];
    else if (event.key === "+") return zoom(1 / 1.4);
    else if (event.key === "-") return zoom(1.4);
    else return;
    event.preventDefault();
    set();
  });
  svg.addEventListener("reveal", (event) => {
    svg.closest("section").scrollIntoView({ block: "nearest" });
    const { e, f } = event.detail.transform.baseVal.consolidate().matrix;
    centre(e + 86, f + 17, 1);
  });
  for (const button of all(frame, "[data-zoom]")) {
    button.addEventListener("click", () => {
      if (button.dataset.zoom === "fit") [x, y, width, height] = whole;
      zoom({ in: 1 / 1.5, out: 1.5, fit: 1 }[button.dataset.zoom]);
    });
  }
  // A large graph begins at its beginning, where it can be read.
  const scale = Math.min(svg.clientWidth / width, svg.clientHeight / height);
  if (svg.classList.contains("start") && (scale < 0.5 || scale > 1.2)) {
    const own = scale < 0.5 ? 0.7 : 1.2;
    centre(scale < 0.5 ? svg.clientWidth / 2 / own : whole[2] / 2, svg.clientHeight / 2 / own, own);
  } else set();
}
