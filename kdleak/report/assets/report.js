
"use strict";
// Everything shown is written with textContent; nothing here parses markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const number = (value) => value.toLocaleString("en-US");
  const percent = (part, whole) => {
    if (!whole) return "0 %";
    const value = (100 * part) / whole;
    return (value >= 99.95 || value < 0.05 ? value.toFixed(0) : value.toFixed(1)) + " %";
  };
  const counted = (value, one) => number(value) + " " + one + (value === 1 ? "" : "s");

  function make(tag, text, className) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  }

  // --- light and dark ---------------------------------------------------------------------------
  const theme = byId("theme");
  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const nameTheme = () => { theme.textContent = isDark() ? "Light colours" : "Dark colours"; };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", nameTheme);
  nameTheme();

  if (data.tree && byId("flame-graph")) flameGraph();
  if (data.sites && byId("site-table")) siteTable();

  // --- flame graph ------------------------------------------------------------------------------
  function flameGraph() {
    const ROW = 24, LEAST = 1.5;  // pixels: height of a row, narrowest frame drawn
    const graph = byId("flame-graph"), detail = byId("flame-detail"), found = byId("flame-found");
    const select = byId("flame-weight"), search = byId("flame-search"), reset = byId("flame-reset");
    // Node 0 stands for everything; the frames follow, callers before callees.
    const nodes = [{ name: "all stacks", parent: -1, weights: data.totals, callees: [], depth: 0 }];
    data.tree.forEach(([name, parent, ...weights], index) => {
      const caller = nodes[parent + 1];
      nodes.push({
        name: data.names[name], parent: parent + 1, weights, callees: [], depth: caller.depth + 1,
        accused: name === data.accused,
      });
      caller.callees.push(index + 1);
    });
    let weight = data.totals.findIndex((total) => total > 0);
    if (weight < 0) weight = 0;
    let zoom = 0, current = 0, drawn = new Map(), rest = [], wanted = "";

    const value = (node) => node.weights[weight];
    const amount = (node) => weight === 0 ? counted(value(node), "byte")
      : counted(value(node), weight === 1 ? "block" : "allocation");
    const words = (node) => node.name + ": " + amount(node) + ", "
      + percent(value(node), data.totals[weight]) + " of all " + data.weights[weight]
      + (node.accused ? "; accused" : "");

    data.weights.forEach((name, index) => {
      const option = make("option", name + (data.totals[index] ? "" : " (none)"));
      option.value = String(index);
      select.append(option);
    });
    select.value = String(weight);
    byId("flame-tools").hidden = false;

    function hueOf(name) {
      let hash = 7;
      const end = name.indexOf("!");
      const module = end > 0 ? name.slice(0, end) : "";
      for (const char of module) hash = (hash * 31 + char.codePointAt(0)) % 9973;
      return module === "nt" || module === "hal" || !module ? -1 : (hash * 47) % 360;
    }

    function layout(pixels) {
      // Where each frame stands, in parts of the whole width; null where it has none.
      const places = new Array(nodes.length).fill(null);
      const path = [];
      for (let index = zoom; index >= 0; index = nodes[index].parent) path.unshift(index);
      path.forEach((index) => { places[index] = { left: 0, width: 1, above: index !== zoom }; });
      const whole = value(nodes[zoom]);
      rest = [];
      const waiting = whole ? [zoom] : [];
      while (waiting.length) {
        const index = waiting.pop();
        let left = places[index].left, light = 0;
        const callees = nodes[index].callees.slice().sort((a, b) => value(nodes[b]) - value(nodes[a]));
        for (const callee of callees) {
          const width = value(nodes[callee]) / whole;
          if (width * pixels >= LEAST) {
            places[callee] = { left, width, above: false };
            left += width;
            waiting.push(callee);
          } else if (width > 0) {
            // Too narrow to be seen: the last of them, since the widest come first.
            if (!light) rest.push({ left, width: 0, count: 0, depth: nodes[index].depth + 1 });
            light += 1;
            rest[rest.length - 1].width += width;
            rest[rest.length - 1].count += 1;
          }
        }
      }
      return places;
    }

    function draw() {
      const hadFocus = graph.contains(document.activeElement);
      const pixels = graph.clientWidth || 1000;
      const places = layout(pixels);
      drawn = new Map();
      graph.replaceChildren();
      let deepest = 0;
      places.forEach((place, index) => {
        if (!place) return;
        const node = nodes[index];
        deepest = Math.max(deepest, node.depth);
        const box = make("div", place.width * pixels < 24 ? "" : node.name, "frame");
        const hue = hueOf(node.name);
        box.style.left = (place.left * 100).toFixed(4) + "%";
        box.style.width = (place.width * 100).toFixed(4) + "%";
        box.style.top = node.depth * ROW + "px";
        if (index === 0 || hue < 0) box.classList.add("plain");
        else box.style.setProperty("--hue", String(hue));
        box.classList.toggle("above", place.above);
        box.classList.toggle("accused", Boolean(node.accused));
        box.setAttribute("role", "treeitem");
        box.setAttribute("aria-level", String(node.depth + 1));
        box.setAttribute("aria-label", words(node));
        if (node.callees.length) box.setAttribute("aria-expanded", "true");
        box.tabIndex = -1;
        box.dataset.index = String(index);
        drawn.set(index, box);
        graph.append(box);
      });
      for (const { left, width, count, depth } of rest) {
        if (width * pixels < LEAST) continue;
        deepest = Math.max(deepest, depth);
        const box = make("div", width * pixels < 90 ? "" : counted(count, "lighter frame"), "lighter");
        box.style.left = (left * 100).toFixed(4) + "%";
        box.style.width = (width * 100).toFixed(4) + "%";
        box.style.top = depth * ROW + "px";
        box.setAttribute("aria-hidden", "true");
        graph.append(box);
      }
      graph.style.height = (deepest + 1) * ROW + "px";
      if (!drawn.has(current)) current = zoom;
      drawn.get(current).tabIndex = 0;
      reset.disabled = zoom === 0;
      mark();
      if (hadFocus) drawn.get(current).focus();
    }

    function mark() {
      let sum = 0, count = 0;
      const inside = new Array(nodes.length).fill(false);
      nodes.forEach((node, index) => {
        const hit = wanted !== "" && index > 0 && node.name.toLowerCase().includes(wanted);
        node.hit = hit;
        // A match below a match is part of it and must not count twice.
        const covered = index > 0 && inside[node.parent];
        inside[index] = hit || covered;
        if (hit && value(node)) {
          count += 1;
          if (!covered) sum += value(node);
        }
      });
      drawn.forEach((box, index) => {
        box.classList.toggle("hit", Boolean(nodes[index].hit));
        box.classList.toggle("miss", wanted !== "" && !nodes[index].hit);
      });
      found.textContent = wanted === "" ? ""
        : count === 0 ? "Nothing matches."
        : counted(count, "frame") + (count === 1 ? " matches: " : " match: ")
          + percent(sum, data.totals[weight]) + " of " + data.weights[weight];
    }

    function tell(index) { detail.textContent = words(nodes[index]); }

    function move(index) {
      if (!drawn.has(index)) return;
      if (drawn.has(current)) drawn.get(current).tabIndex = -1;
      current = index;
      const box = drawn.get(index);
      box.tabIndex = 0;
      box.focus();
    }

    function zoomTo(index) {
      zoom = index;
      current = index;
      draw();
      tell(index);
    }

    // Left and right: the next frame on the same row, whoever called it.
    function beside(index, step) {
      const row = [...drawn.keys()].filter((one) => nodes[one].depth === nodes[index].depth);
      row.sort((a, b) => parseFloat(drawn.get(a).style.left) - parseFloat(drawn.get(b).style.left));
      return row[row.indexOf(index) + step];
    }

    const KEYS = {
      ArrowUp: (index) => move(nodes[index].parent),
      ArrowDown: (index) => move(nodes[index].callees.find((one) => drawn.has(one))),
      ArrowLeft: (index) => move(beside(index, -1)),
      ArrowRight: (index) => move(beside(index, 1)),
      Home: () => move(0),
      End: () => move([...drawn.keys()].pop()),
      Enter: (index) => zoomTo(index),
      " ": (index) => zoomTo(index),
      Escape: () => { if (zoom > 0) zoomTo(nodes[zoom].parent); },
    };
    const indexOf = (event) => {
      const box = event.target.closest(".frame");
      return box ? Number(box.dataset.index) : -1;
    };
    graph.addEventListener("keydown", (event) => {
      const index = indexOf(event);
      if (index < 0 || !(event.key in KEYS) || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      KEYS[event.key](index);
    });
    graph.addEventListener("click", (event) => {
      const index = indexOf(event);
      if (index >= 0) zoomTo(index);
    });
    graph.addEventListener("mouseover", (event) => {
      const index = indexOf(event);
      if (index >= 0) tell(index);
    });
    graph.addEventListener("focusin", (event) => {
      const index = indexOf(event);
      if (index >= 0) tell(index);
    });
    reset.addEventListener("click", () => { zoomTo(0); });
    select.addEventListener("change", () => {
      weight = Number(select.value);
      zoom = 0;
      current = 0;
      draw();
      tell(0);
      table.textContent = "";
    });
    search.addEventListener("input", () => { wanted = search.value.trim().toLowerCase(); mark(); });
    search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        const first = [...drawn.keys()].find((index) => nodes[index].hit);
        if (first !== undefined) move(first);
      } else if (event.key === "Escape") {
        search.value = "";
        wanted = "";
        mark();
      }
    });
    let drawnFor = 0;
    new ResizeObserver(() => {
      if (graph.clientWidth !== drawnFor) { drawnFor = graph.clientWidth; draw(); }
    }).observe(graph);

    // The same figures as a table: for those who cannot see the graph. Made when it is opened.
    const holder = byId("flame-table");
    const table = make("div", undefined, "scroll");
    holder.append(table);
    function fillTable() {
      if (!holder.open || table.firstChild) return;
      const rows = make("table"), head = make("thead"), body = make("tbody"), line = make("tr");
      ["Level", "Frame", data.weights[0], data.weights[1], data.weights[2]].forEach((title, i) => {
        const cell = make("th", title, i > 1 ? "n" : "");
        cell.scope = "col";
        line.append(cell);
      });
      head.append(line);
      rows.append(make("caption", "Call stacks, callers before what they call", "note"), head, body);
      nodes.slice(1, 1001).forEach((node) => {
        const row = make("tr"), name = make("th", node.name, "mono");
        name.scope = "row";
        const cells = [node.depth, ...node.weights].map((one) => make("td", number(one), "n"));
        ["Level", ...data.weights].forEach((title, i) => { cells[i].dataset.label = title; });
        row.append(cells.shift(), name, ...cells);
        body.append(row);
      });
      table.append(rows);
      if (nodes.length > 1001) {
        table.append(make("p", number(nodes.length - 1001) + " lighter frames follow in the JSON.", "note"));
      }
    }
    holder.addEventListener("toggle", fillTable);
    if (data.leftOut) {
      graph.after(make("p", counted(data.leftOut, "frame") + " too light to be drawn left out.", "note"));
    }
    draw();
    tell(0);
  }

  // --- call sites -------------------------------------------------------------------------------
  function siteTable() {
    const VERDICTS = ["accused", "suspected", "too few", "levelled off", "cleared", "frees only"];
    const columns = [
      ["Call site", (site) => data.names[site.name].toLowerCase()],
      ["Verdict", (site) => VERDICTS.indexOf(site.judgement)],
      ["Bytes out", (site) => site.bytes],
      ["Blocks out", (site) => site.blocks],
      ["Old", (site) => site.old],
      ["Allocated", (site) => site.allocs],
      ["Came back", (site) => site.returned],
      ["Freed here", (site) => site.frees],
    ];
    let by = -1, down = true;
    const holder = byId("site-table");
    const table = make("table"), head = make("thead"), line = make("tr");
    const heads = columns.map(([title], index) => {
      const cell = make("th", undefined, index > 1 ? "n" : "");
      const button = make("button", title);
      button.type = "button";
      cell.scope = "col";
      cell.append(button);
      button.addEventListener("click", () => {
        down = by === index ? !down : index > 1;
        by = index;
        arrange();
      });
      line.append(cell);
      return cell;
    });
    head.append(line);
    table.append(head);
    const rows = data.sites.map((site) => ({ site, row: rowOf(site) }));

    // A body of its own for each call site: its figures, and below them its words over the full width.
    function rowOf(site) {
      const group = make("tbody"), row = make("tr"), name = make("th"), more = make("tr", undefined, "more");
      name.scope = "row";
      name.append(make("div", data.names[site.name], "site-name mono"));
      if (site.via >= 0) name.append(make("div", "by way of " + data.names[site.via], "why"));
      row.append(name);
      const badge = make("td");
      badge.dataset.label = "Verdict";
      badge.append(make("span", site.judgement, "badge " + site.judgement.replace(/[^a-z]/g, "-")));
      row.append(badge);
      const unknown = site.unsized ? (site.bytes ? "+?" : "") : "";
      [
        site.unsized && !site.bytes ? "?" : number(site.bytes) + unknown, number(site.blocks),
        number(site.old), number(site.allocs), number(site.returned), number(site.frees),
      ].forEach((text, index) => {
        const cell = make("td", text, "n");
        cell.dataset.label = columns[index + 2][0];
        row.append(cell);
      });
      const words = make("td");
      words.colSpan = columns.length;
      if (site.sentence) words.append(make("p", site.sentence, "why"));
      site.facts.slice(0, site.blame).forEach((fact) => words.append(make("p", fact, "why")));
      if (site.stack.length || site.facts.length > site.blame) words.append(stackOf(site));
      more.append(words);
      group.append(row, more);
      return group;
    }

    function stackOf(site) {
      const details = make("details"), often = site.stacks > 1
        ? "Commonest of " + number(site.stacks) + " stacks" : "Stack";
      details.append(make("summary", often + " (" + counted(site.stack.length, "frame") + ")"
        + (site.facts.length > site.blame ? " and figures" : "")));
      // Filled when it is opened: most never are.
      details.addEventListener("toggle", () => {
        if (!details.open || details.children.length > 1) return;
        const list = make("ol", undefined, "stack");
        list.start = 0;
        site.stack.forEach((frame) => {
          list.append(make("li", data.names[frame], frame === site.name ? "at" : frame === site.via ? "via" : ""));
        });
        details.append(list);
        if (site.end !== "complete" && site.end !== "user mode") {
          details.append(make("p", "The stack ends early: " + site.end + ".", "note"));
        }
        site.facts.slice(site.blame).forEach((fact) => details.append(make("p", fact, "why")));
      });
      return details;
    }

    function arrange() {
      const order = rows.slice();
      if (by >= 0) {
        const key = columns[by][1];
        const sign = down ? -1 : 1;
        order.sort((a, b) => {
          const left = key(a.site), right = key(b.site);
          return left < right ? -sign : left > right ? sign : 0;
        });
      }
      heads.forEach((cell, index) => {
        if (index === by) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      });
      table.append(...order.map((one) => one.row));  // moves them; the head keeps the focus
    }

    holder.append(table);
    if (data.sitesLeftOut) {
      holder.append(make("p", counted(data.sitesLeftOut, "call site")
        + " that hold least left out; the JSON has all.", "note"));
    }
    arrange();
    const first = table.querySelector("details");
    if (first) first.open = true;
    addEventListener("beforeprint", () => {
      [...table.querySelectorAll("details")].slice(0, 10).forEach((one) => {
        one.open = true;
        one.dispatchEvent(new Event("toggle"));
      });
    });
  }
})();
