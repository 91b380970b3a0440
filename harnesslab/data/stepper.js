// The stepper: one trace, or two side by side, event by event. It draws with the page's own means (no library, no network) into one
// element, and is the same code in a notebook (`render`, an anywidget) and in the HTML file (`openPage`).
// harnesslab/stepper.py makes the data it shows. Every text of a trace is untrusted, so text enters the page only as text nodes.
const harnesslabStepper = (() => {
  "use strict";
  const ROW = 26; // height of a row in pixels; stepper.css says the same
  const LONGEST = 20000; // characters of one text that are drawn before somebody asks for all of it
  const PARTS = ["system", "tools", "task", "replies", "results"];
  const KINDS = { task: ["◆", "task"], call: ["→", "call"], result: ["←", "result"], answer: ["●", "answer"], end: ["■", "end"] };
  const FILTERS = [
    ["all", "everything", () => true],
    ["call", "calls", (e) => e.k === "call"],
    ["result", "results", (e) => e.k === "result"],
    ["error", "errors", (e) => !!e.e],
    ["edit", "edits", (e) => !!e.edit],
    ["words", "the model's words", (e) => !!e.says || e.k === "answer"],
    ["note", "notes of the harness", (e) => !!e.notes || e.k === "end"],
  ];
  const KEYS = [
    ["→ ↓ j", "next event"], ["← ↑ k", "previous event"], ["Home End", "first, last"], ["PageUp PageDown", "ten events"],
    ["n p", "next, previous error"], ["d D", "two runs: next, previous difference"], ["/", "search; Enter goes to the next match, Escape leaves"], ["f F", "next, previous type to show; Escape shows everything"],
    ["space", "play, pause"], ["Enter Escape", "into the text of the event, and back to the list"], ["?", "these keys"],
  ];

  const number = (n) => Math.round(n).toLocaleString("en-US");
  const short = (n) => (n >= 1e9 ? (n / 1e9).toFixed(1) + "G" : n >= 1e6 ? (n / 1e6).toFixed(n < 1e7 ? 1 : 0) + "M" : n >= 1e4 ? Math.round(n / 1e3) + "k" : n >= 1e3 ? (n / 1e3).toFixed(1) + "k" : String(Math.round(n)));
  const dollars = (d) => "$" + (d >= 0.1 || d === 0 ? d.toFixed(2) : d.toPrecision(2));
  const seconds = (s) => (s < 0.0995 ? Math.max(0, s * 1000).toFixed(s < 0.00995 ? 1 : 0) + " ms" : s.toFixed(s < 9.95 ? 1 : 0) + " s");
  const clamp = (n, low, high) => Math.min(high, Math.max(low, n));

  function make(tag, name, ...children) {
    const element = document.createElement(tag);
    if (name) element.className = name;
    element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return element;
  }

  function draw(tag, attributes, ...children) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  // No key pressed in here reaches the notebook, where `d d` deletes a cell. JupyterLab hears keys as they bubble up.
  function keepKeys(element) {
    for (const type of ["keydown", "keyup", "keypress"]) element.addEventListener(type, (event) => event.stopPropagation());
  }

  // An element that can have the focus, with JupyterLab's own switch: a key pressed on it is no shortcut.
  function focusable(element) {
    element.setAttribute("data-lm-suppress-shortcuts", "true");
    return element;
  }

  function button(label, title, press) {
    const element = focusable(make("button", "hls-button", label));
    element.type = "button";
    element.title = title;
    element.setAttribute("aria-label", title);
    element.addEventListener("click", press);
    return element;
  }

  const firstLine = (text) => (text.length > 400 ? text.slice(0, 400) : text).split("\n", 1)[0];

  // What stands in the list for an event: a label, a preview, and whether it went wrong.
  function headline(event) {
    const [glyph, word] = event.e && event.k !== "end" ? ["✖", "ERROR"] : KINDS[event.k] || ["·", event.k];
    let text = event.t || "";
    if (event.k === "call") text = `${event.n}(${(event.a || []).map(([key, value]) => `${key}=${firstLine(value)}`).join(", ")})`;
    else {
      const lines = text.split("\n").length;
      text = firstLine(text).trimStart() + (lines > 1 && event.k === "result" ? ` [+${lines - 1} lines]` : "");
    }
    return { glyph, word, text: text.slice(0, 300) };
  }

  // One run on the screen: its list, its current event, its context and its bill.
  class Pane {
    constructor(stepper, index) {
      this.stepper = stepper;
      this.index = index;
      this.height = 300;
      this.head = make("div", "hls-head");
      this.rows = make("div", "hls-rows");
      this.space = make("div", "hls-space", this.rows);
      this.list = focusable(make("div", "hls-list", this.space));
      this.list.tabIndex = 0;
      this.list.setAttribute("role", "listbox");
      this.list.addEventListener("scroll", () => this.scrolled());
      this.list.addEventListener("mousedown", (event) => this.clicked(event));
      this.detail = focusable(make("div", "hls-detail"));
      this.detail.tabIndex = 0;
      this.detail.setAttribute("role", "group");
      this.meter = make("div", "hls-meter");
      this.charts = make("div", "hls-charts");
      this.bottom = make("div", "hls-bottom", this.meter, this.charts);
      this.element = make("section", "hls-pane", this.head, make("div", "hls-main", this.list, this.detail), this.bottom);
      this.watch = new ResizeObserver(() => this.resized());
      this.watch.observe(this.list);
      this.watch.observe(this.charts);
    }

    setRun(run) {
      this.run = run;
      this.drawHead();
      this.list.setAttribute("aria-label", `Events of ${run.label}`);
      this.detail.setAttribute("aria-label", `The current event of ${run.label}`);
      this.shown = null;
      this.size = "";
      this.marks = []; // those in the old charts know the old calls
      this.space.style.height = this.stepper.visible.length * ROW + "px";
    }

    eventAt(position) {
      const { rows } = this.stepper.page;
      return rows ? rows[position][this.index] : position;
    }

    drawHead() {
      const { run } = this;
      const state = run.live ? "running" : run.status || "no end recorded";
      const marks = make("span", "hls-state" + (run.live || run.status === "done" ? "" : " hls-state-bad"), state);
      const letter = this.stepper.page.rows ? make("span", "hls-letter", "ab"[this.index]) : null;
      const line = make("div", "hls-title", letter, make("strong", "", run.label), marks);
      for (const note of run.remarks) line.append(make("span", "hls-remark", note));
      this.head.replaceChildren(line);
      if (run.error) this.head.append(make("div", "hls-headerror", run.error));
    }

    draw() {
      const { position, visible } = this.stepper;
      this.ensureVisible(this.stepper.place);
      this.drawRows();
      const i = visible.length ? this.eventAt(position) : -1;
      if (this.shown !== i || this.query !== this.stepper.query) this.drawDetail(i);
      this.drawMeter(i);
    }

    // Scroll as little as shows the current row and its neighbours; a far jump puts it in the middle.
    ensureVisible(place) {
      const top = place * ROW, scroll = this.list.scrollTop, room = this.height;
      const margin = room > 9 * ROW ? 2 * ROW : room > 5 * ROW ? ROW : 0;
      if (top < scroll - room || top > scroll + 2 * room) this.list.scrollTop = top - room / 2;
      else if (top - margin < scroll) this.list.scrollTop = top - margin;
      else if (top + ROW + margin > scroll + room) this.list.scrollTop = top + ROW + margin - room;
    }

    scrolled() {
      this.stepper.scrollTogether(this.list.scrollTop);
      this.drawRows();
    }

    resized() {
      const height = this.list.clientHeight;
      if (height && height !== this.height) {
        this.height = height;
        if (this.run) {
          this.ensureVisible(this.stepper.place);
          this.drawRows();
        }
      }
      this.drawCharts();
    }

    clicked(event) {
      const row = event.target.closest("[data-place]");
      if (event.button !== 0) return;
      if (row) this.stepper.goPlace(Number(row.dataset.place));
      this.list.focus({ preventScroll: true });
      if (row) event.preventDefault();
    }

    drawRows() {
      const { visible, place, id } = this.stepper;
      const first = Math.max(0, Math.floor(this.list.scrollTop / ROW) - 3);
      const last = Math.min(visible.length, Math.ceil((this.list.scrollTop + this.height) / ROW) + 3);
      const rows = [];
      for (let i = first; i < last; i++) rows.push(this.drawRow(i, visible[i], i === place));
      this.rows.style.transform = `translateY(${first * ROW}px)`;
      this.rows.replaceChildren(...rows);
      if (visible.length) this.list.setAttribute("aria-activedescendant", `${id}-${this.index}-${place}`);
      else {
        this.list.removeAttribute("aria-activedescendant");
        this.rows.replaceChildren(make("div", "hls-empty", this.run.events.length ? "No event of this type." : "No events yet."));
      }
    }

    drawRow(place, position, current) {
      const { stepper } = this;
      const i = this.eventAt(position);
      const event = i < 0 ? null : this.run.events[i];
      const row = make("div", "hls-row");
      row.dataset.place = place;
      row.id = `${stepper.id}-${this.index}-${place}`;
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(current));
      row.setAttribute("aria-setsize", stepper.visible.length);
      row.setAttribute("aria-posinset", place + 1);
      if (current) row.classList.add("hls-current");
      if (stepper.page.rows) {
        if (position === stepper.page.parted) row.classList.add("hls-parted");
        if (stepper.page.kinds[position] !== "same") row.classList.add("hls-other");
      }
      if (!event) {
        row.classList.add("hls-none");
        row.append(make("span", "hls-text", "nothing here: only the other run has this event"));
        return row;
      }
      const { glyph, word, text } = headline(event);
      if (event.e) row.classList.add("hls-error");
      row.classList.add("hls-" + event.k);
      row.append(make("span", "hls-number", String(i + 1)), make("span", "hls-kind", make("span", "hls-glyph", glyph), word));
      row.append(make("span", "hls-text", ...this.marked(text)));
      if (stepper.page.rows && stepper.page.kinds[position] !== "same") row.append(make("span", "hls-badge", `≠ ${stepper.page.kinds[position].replace(/^only .$/, "only here")}`));
      if (event.x) row.append(make("span", "hls-badge", `▲ ${event.x}`));
      if (event.cut) row.append(make("span", "hls-badge", "✂ cut"));
      if (event.notes) row.append(make("span", "hls-badge", "! note"));
      if (stepper.query && stepper.matches.has(position) && stepper.has(event)) row.append(make("span", "hls-badge hls-hit", "match"));
      return row;
    }

    // A text as nodes, with what is searched for marked.
    marked(text) {
      const { query } = this.stepper;
      if (!query) return [text];
      const nodes = [], low = text.toLowerCase();
      let from = 0;
      if (low.length !== text.length) return [text]; // a letter whose lower case is longer: positions would not fit
      for (let at = low.indexOf(query), n = 0; at >= 0 && n < 500; at = low.indexOf(query, from), n++) {
        nodes.push(text.slice(from, at), make("mark", "", text.slice(at, at + query.length)));
        from = at + query.length;
      }
      return [...nodes, text.slice(from)];
    }

    // A block of text, line by line: cut marks stand out, lines of an edit carry their sign's colour.
    block(text, edit) {
      const pre = make("pre", "hls-pre");
      const whole = text.length <= LONGEST;
      const fill = (part) => {
        pre.replaceChildren();
        let plain = [];
        const flush = () => plain.length && pre.append(...this.marked(plain.join("\n") + "\n")) === undefined && (plain = []);
        for (const line of part.split("\n")) {
          const kind = this.stepper.cut.test(line) ? "hls-cut" : edit && line.startsWith("- ") ? "hls-out" : edit && line.startsWith("+ ") ? "hls-in" : "";
          if (!kind) plain.push(line);
          else {
            flush();
            pre.append(make("span", kind, ...(kind === "hls-cut" ? ["✂ "] : []), ...this.marked(line)));
          }
        }
        flush();
      };
      fill(whole ? text : text.slice(0, LONGEST));
      if (whole) return pre;
      const more = button(`show all ${number(text.length)} characters`, "show the whole text", () => {
        fill(text);
        this.detail.focus({ preventScroll: true });
        more.remove();
      });
      return make("div", "", pre, more);
    }

    folded(title, ...content) {
      return make("details", "hls-folded", focusable(make("summary", "", title)), ...content);
    }

    diff(lines) {
      const names = { "-": "hls-out", "+": "hls-in", " ": "" };
      return make("pre", "hls-pre hls-diff", ...lines.map(([sign, line]) => make("span", names[sign] || "hls-cut", sign + " ", ...this.marked(line))));
    }

    drawDetail(i) {
      const active = document.activeElement;
      if (active !== this.detail && this.detail.contains(active)) this.detail.focus({ preventScroll: true }); // never lose the focus to the notebook
      this.shown = i;
      this.query = this.stepper.query;
      const event = i < 0 ? null : this.run.events[i];
      if (!event) {
        this.detail.replaceChildren(make("p", "hls-quiet", this.stepper.visible.length && this.stepper.page.rows ? "Only the other run has this event." : "Nothing to show."));
        return;
      }
      const { glyph, word } = headline(event);
      const title = make("h4", event.e ? "hls-error" : "", make("span", "hls-glyph", glyph), ` ${i + 1} ${word}${event.n ? " " + event.n : ""}`);
      const facts = [event.s ? `step ${event.s}` : "", event.z !== undefined ? seconds(event.z) : "", event.x ? `▲ ${event.x}` : ""].filter(Boolean);
      const parts = [make("div", "hls-detailhead", title, make("span", "hls-quiet", facts.join(" · ")), this.partner(event))];
      if (event.thinks) parts.push(this.folded("thinking", this.block(event.thinks)));
      if (event.says) parts.push(make("div", "hls-says", make("span", "hls-label", "says"), ...this.marked(event.says)));
      if (event.gate) parts.push(make("div", "hls-gate" + (event.gate.startsWith("allowed") ? "" : " hls-error"), make("span", "hls-label", "gate"), event.gate));
      if (event.d) parts.push(this.diff(event.d));
      for (const [key, value] of event.a || []) parts.push(make("div", "hls-label", key), this.block(value));
      if (event.t) parts.push(this.block(event.t, event.edit));
      for (const note of event.notes || []) parts.push(make("div", "hls-note", make("span", "hls-label", "! note"), ...this.marked(note)));
      if (event.k !== "result" && event.c >= 0) parts.push(this.callLine(this.run.calls[event.c], event.c));
      if (event.k === "task") parts.push(...this.about());
      if (i === this.run.events.length - 1 && !this.run.live) parts.push(this.table(this.run.totals, "The whole run"));
      this.detail.replaceChildren(...parts);
      this.detail.scrollTop = 0;
    }

    partner(event) {
      if (event.p === undefined) return null;
      const position = this.stepper.positionOf(this.index, event.p);
      const word = event.k === "call" ? "its result" : "its call";
      return button(`${word}: ${event.p + 1}`, `go to ${word}, event ${event.p + 1}`, () => {
        this.stepper.go(position);
        this.list.focus({ preventScroll: true });
      });
    }

    callLine(call, index) {
      const [fresh, read, write, out] = call.u;
      const tries = call.tries > 1 ? ` · ${call.tries} tries, ${seconds(call.waits)} waiting` : "";
      return make("p", "hls-quiet", `model call ${index + 1}: ${number(call.in)} tokens in (${number(fresh)} fresh, ${number(read)} read from the cache, ${number(write)} written to it), ` +
        `${number(out)} out${call.d === null ? "" : " · " + dollars(call.d)} · ${seconds(call.z)}${tries}`);
    }

    about() {
      const { run } = this;
      const parts = [];
      if (run.system) parts.push(this.folded("system prompt", this.block(run.system)));
      if (run.tools.length) parts.push(this.folded(`tools (${run.tools.length})`, ...run.tools.map(([name, text]) => make("div", "", make("div", "hls-label", name), this.block(text)))));
      if (run.facts.length) parts.push(this.folded("about this run", this.table(run.facts, "")));
      return parts;
    }

    table(rows, caption) {
      const table = make("table", "hls-table");
      if (caption) table.append(make("caption", "", caption));
      for (const [key, value] of rows) {
        const name = make("th", "", key);
        name.scope = "row";
        table.append(make("tr", "", name, make("td", "", value)));
      }
      return table;
    }

    // The bar: what the model will see on its next call. And what has been billed up to here.
    drawMeter(i) {
      const { run } = this;
      const event = run.events[i < 0 ? this.stepper.before(this.index) : i];
      if (!event) {
        this.meter.replaceChildren();
        return;
      }
      const total = event.m.reduce((a, b) => a + b, 0);
      const bar = make("div", "hls-bar");
      const legend = make("div", "hls-legend");
      bar.setAttribute("role", "img");
      bar.setAttribute("aria-label", `Context ${number(total)} tokens: ${PARTS.map((part, k) => `${part} ${number(event.m[k])}`).join(", ")}`);
      PARTS.forEach((part, k) => {
        const share = event.m[k] / Math.max(1, this.stepper.most.context);
        const segment = make("span", `hls-part hls-part-${part}`, share > 0.09 ? part : "");
        segment.style.width = share * 100 + "%";
        segment.title = `${part}: ${number(event.m[k])} tokens`;
        if (event.m[k] > 0) bar.append(segment);
        legend.append(make("span", "hls-key", make("span", `hls-swatch hls-part-${part}`), `${part} ${number(event.m[k])}`));
      });
      legend.append(make("span", "hls-key hls-scale", `the whole width: ${short(this.stepper.most.context)}, the longest context here`));
      const window_ = run.window ? ` of ${short(run.window)} (${((100 * total) / run.window).toFixed(1)} %)` : "";
      const next = event.c < run.calls.length - 1 || run.live ? "Context of the next call" : "Context at the end";
      const title = make("div", "hls-metertitle", `${next}: `, make("strong", "", `${number(total)} tokens`), window_,
        make("span", "hls-quiet", event.exact ? " measured, the split estimated" : " estimated"));
      const call = event.c >= 0 ? run.calls[event.c] : null;
      const billed = make("div", "hls-billed", "Billed input: ", make("strong", "", `${number(call ? call.ci : 0)} tokens`));
      if (call) billed.append(` so far, ${number(call.in)} of them by call ${event.c + 1}`);
      if (call && call.cd !== null) billed.append(" · ", make("strong", "", dollars(call.cd)), run.scripted ? " at list price (the answers were scripted)" : " with output");
      else if (call) billed.append(make("span", "hls-quiet", " · price unknown"));
      this.meter.replaceChildren(title, bar, legend, billed);
      this.moveMarks(event.c);
    }

    drawCharts() {
      const { run } = this;
      const width = this.charts.clientWidth;
      const size = `${width} ${run ? run.calls.length : 0} ${JSON.stringify(this.stepper.most)}`;
      if (!run || !width || size === this.size) return;
      this.size = size;
      this.marks = [];
      if (!run.calls.length) {
        this.charts.replaceChildren(make("p", "hls-quiet", "No model call yet."));
        return;
      }
      const each = width > 600 ? Math.floor((width - 16) / 2) : width;
      this.charts.replaceChildren(this.contextChart(each), this.billChart(each));
      const event = run.events[this.shown >= 0 ? this.shown : this.stepper.before(this.index)];
      if (event) this.moveMarks(event.c);
    }

    // Axes, a frame to click on and the mark of the current call: what both charts share.
    frame(width, title, top, describe) {
      const height = 132, left = 44, right = 10, above = 8, below = 20;
      const { calls } = this.run;
      const inner = width - left - right, deep = height - above - below;
      const step = inner / calls.length;
      const x = (k) => left + (k + 0.5) * step;
      const y = (value) => above + deep * (1 - value / Math.max(1, top));
      const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": describe, class: "hls-chart" });
      for (const value of [0, top / 2, top]) {
        svg.append(draw("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "hls-grid" }));
        svg.append(draw("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, short(value)));
      }
      svg.append(draw("text", { x: left, y: height - 4 }, "call 1"));
      if (calls.length > 1) svg.append(draw("text", { x: width - right, y: height - 4, "text-anchor": "end" }, `call ${number(calls.length)}`));
      const mark = draw("g", { class: "hls-mark" }, draw("line", { y1: above - 4, y2: height - below }), draw("path", { d: "M-5,0 L5,0 L0,7 Z" }));
      mark.lastChild.setAttribute("transform", `translate(0 ${above - 8})`);
      this.marks.push({ mark, x });
      svg.addEventListener("mousedown", (event) => {
        const k = clamp(Math.floor((event.clientX - svg.getBoundingClientRect().left - left) / step), 0, calls.length - 1);
        this.stepper.go(this.stepper.positionOf(this.index, calls[k].ev));
        this.list.focus({ preventScroll: true });
        event.preventDefault();
      });
      svg.append(draw("title", {}, describe));
      const figure = make("figure", "hls-figure", make("figcaption", "", ...title), svg);
      figure.style.width = width + "px";
      return { figure, svg, mark, x, y, step, inner };
    }

    contextChart(width) {
      const { calls } = this.run;
      const largest = calls.reduce((a, call) => Math.max(a, call.in), 0);
      const { figure, svg, mark, x, y, step, inner } = this.frame(width, ["Context of each call, tokens"], this.stepper.most.context, `Context of each model call, at most ${number(largest)} tokens. Click to go to a call.`);
      const paths = PARTS.map(() => []);
      const bins = Math.min(calls.length, Math.floor(inner / 2));
      const wide = Math.max(1, Math.min(40, (inner / bins) * (bins > 60 ? 1 : 0.8)));
      for (let bin = 0; bin < bins; bin++) {
        const k = Math.floor(((bin + 0.5) * calls.length) / bins);
        let base = 0;
        calls[k].m.forEach((value, part) => {
          if (value > 0) paths[part].push(`M${(x(k) - wide / 2).toFixed(1)},${y(base).toFixed(1)}V${y(base + value).toFixed(1)}h${wide.toFixed(1)}V${y(base).toFixed(1)}z`);
          base += value;
        });
      }
      paths.forEach((path, part) => svg.append(draw("path", { d: path.join(""), class: `hls-fill-${PARTS[part]}` })));
      svg.append(mark);
      return figure;
    }

    billChart(width) {
      const { calls } = this.run;
      const end = calls[calls.length - 1];
      const title = ["Billed so far: ", make("span", "hls-line hls-line-full"), ` all input ${short(end.ci)}, `, make("span", "hls-line hls-line-cached"), ` as cached ${short(end.cc)}`];
      const { figure, svg, mark, x, y } = this.frame(width, title, this.stepper.most.billed, `Billed input adds up to ${number(end.ci)} tokens; with the cache it costs as much as ${number(end.cc)} full-price tokens. Click to go to a call.`);
      const stride = Math.max(1, Math.ceil(calls.length / 800));
      const line = (value) => calls.filter((_, k) => k % stride === 0 || k === calls.length - 1)
        .map((call) => `${x(call.k).toFixed(1)},${y(value(call)).toFixed(1)}`).join(" ");
      svg.append(draw("polyline", { points: line((call) => call.ci), class: "hls-full" }), draw("polyline", { points: line((call) => call.cc), class: "hls-cached" }));
      const dots = [draw("circle", { r: 4, class: "hls-dot-full" }), draw("circle", { r: 4, class: "hls-dot-cached" })];
      mark.append(...dots);
      this.marks[this.marks.length - 1].move = (k) => dots.forEach((dot, which) => dot.setAttribute("cy", y(which ? calls[k].cc : calls[k].ci)));
      svg.append(mark);
      return figure;
    }

    moveMarks(k) {
      for (const { mark, x, move } of this.marks || []) {
        mark.style.display = k < 0 ? "none" : "";
        if (k < 0) continue;
        mark.setAttribute("transform", `translate(${x(k).toFixed(1)} 0)`);
        if (move) move(k);
      }
    }

    remove() {
      this.watch.disconnect();
      this.element.remove();
    }
  }

  let stepperCount = 0;

  // Everything that the panes share: the position, what is shown of the list, the keys, play and search.
  class Stepper {
    // `host`: what the surroundings want to hear. onStep(row from 1), onStop().
    constructor(root, host) {
      this.root = root;
      this.host = host;
      this.id = `hls-${++stepperCount}-${Math.random().toString(36).slice(2, 7)}`;
      this.page = { runs: [], rows: null, parted: -1 };
      this.panes = [];
      this.visible = [];
      this.matches = new Set();
      Object.assign(this, { position: 0, place: 0, filter: 0, query: "", anchor: 0, timer: 0, most: { context: 1, billed: 1 } });
      root.classList.add("hls");
      root.setAttribute("role", "region");
      root.setAttribute("aria-label", "Stepper: a trace, event by event");
      this.buildBar();
      this.body = make("div", "hls-panes");
      this.headline = make("div", "hls-apart");
      root.append(this.bar, this.status, this.help, this.headline, this.body);
      root.addEventListener("keydown", (event) => this.key(event));
      keepKeys(root);
    }

    buildBar() {
      const group = (label, ...items) => {
        const element = make("span", "hls-group", ...items);
        element.setAttribute("role", "group");
        element.setAttribute("aria-label", label);
        return element;
      };
      this.playButton = button("▶ play", "play (space)", () => this.play());
      this.stopButton = button("■ stop the run", "stop the run", () => this.stop());
      this.stopButton.classList.add("hls-stop");
      this.stopButton.hidden = true;
      this.errorCount = make("span", "hls-count");
      this.search = focusable(make("input", "hls-search"));
      this.search.type = "search";
      this.search.placeholder = "search ( / )";
      this.search.setAttribute("aria-label", "search in all events");
      this.search.addEventListener("focus", () => (this.anchor = this.position));
      this.search.addEventListener("input", () => this.find(this.search.value));
      this.found = make("span", "hls-count");
      this.select = focusable(make("select", "hls-select", ...FILTERS.map(([value, label]) => Object.assign(make("option", "", label), { value }))));
      this.select.setAttribute("aria-label", "show only one type of event (f)");
      this.select.addEventListener("change", () => this.setFilter(this.select.selectedIndex));
      this.helpButton = button("? keys", "which keys there are (?)", () => this.toggleHelp());
      this.helpButton.setAttribute("aria-expanded", "false");
      this.bar = make("div", "hls-toolbar",
        group("steps", button("◂", "previous event (left arrow, k)", () => this.move(-1)), button("▸", "next event (right arrow, j)", () => this.move(1)), this.playButton),
        group("errors", button("◂ ✖", "previous error (p)", () => this.error(-1)), button("✖ ▸", "next error (n)", () => this.error(1)), this.errorCount),
        this.partGroup = group("runs", button("≠ ▸", "next row in which the runs differ (d)", () => this.difference(1))),
        group("search", this.search, this.found), group("type", this.select), this.helpButton, this.stopButton);
      this.status = make("div", "hls-status");
      this.status.setAttribute("role", "status");
      this.help = make("dl", "hls-help", ...KEYS.flatMap(([keys, what]) => [make("dt", "", keys), make("dd", "", what)]));
      this.help.hidden = true;
    }

    // Show these data. The reader stays where they are; one who was at the end of a running trace stays at its end.
    setPage(page) {
      const atEnd = this.following() && this.position >= this.count() - 1;
      const inside = this.root.contains(document.activeElement);
      this.page = page;
      this.cut = new RegExp(page.cut);
      page.runs.forEach((run) => run.calls.forEach((call, k) => (call.k = k)));
      const calls = page.runs.flatMap((run) => run.calls);
      const contexts = page.runs.flatMap((run) => run.events.map((event) => event.m.reduce((a, b) => a + b, 0)));
      this.most = { context: contexts.reduce((a, b) => Math.max(a, b), calls.reduce((a, call) => Math.max(a, call.in), 1)), billed: calls.reduce((a, call) => Math.max(a, call.ci, call.cc), 1) };
      this.hay = null;
      if (this.panes.length !== page.runs.length) {
        this.panes.forEach((pane) => pane.remove());
        this.panes = page.runs.map((_, index) => new Pane(this, index));
        this.body.replaceChildren(...this.panes.map((pane) => pane.element));
        this.root.classList.toggle("hls-two", this.panes.length > 1);
        if (inside && !this.root.contains(document.activeElement) && this.panes.length) this.focus();
      }
      this.position = clamp(atEnd ? this.count() - 1 : this.position, 0, Math.max(0, this.count() - 1));
      this.refresh();
      this.panes.forEach((pane, index) => pane.setRun(page.runs[index]));
      const errors = this.errors().length;
      this.errorCount.textContent = errors === 1 ? "1 error" : `${number(errors)} errors`;
      this.partGroup.hidden = !page.rows;
      this.headline.hidden = !page.rows;
      if (page.rows) this.headline.textContent = [page.setup.length ? `Set up differently: ${page.setup.join(", ")}.` : "", page.why || "The two runs made the same calls and got the same results."].join(" ");
      this.showStop(page.runs.some((run) => run.live && run.can_stop));
      this.draw();
      this.panes.forEach((pane) => pane.drawCharts());
    }

    following() {
      return this.page.runs.some((run) => run.live);
    }

    count() {
      return this.page.rows ? this.page.rows.length : this.page.runs.length ? this.page.runs[0].events.length : 0;
    }

    eventsAt(position) {
      if (!this.page.rows) return [this.page.runs[0].events[position]];
      return this.page.rows[position].map((i, run) => (i < 0 ? null : this.page.runs[run].events[i])).filter(Boolean);
    }

    positionOf(run, i) {
      return this.page.rows ? this.page.rows.findIndex((row) => row[run] === i) : i;
    }

    // The last event of a run at or before the current row, for rows that only the other run has.
    before(run) {
      const rows = this.page.rows || [];
      for (let position = Math.min(this.position, rows.length - 1); position >= 0; position--) {
        if (rows[position][run] >= 0) return rows[position][run];
      }
      return 0;
    }

    errors() {
      const found = [];
      for (let position = 0; position < this.count(); position++) if (this.eventsAt(position).some((event) => event.e)) found.push(position);
      return found;
    }

    // Which rows are shown, and where in them the current one stands.
    refresh() {
      const wanted = FILTERS[this.filter][2];
      this.visible = [];
      for (let position = 0; position < this.count(); position++) if (this.filter === 0 || this.eventsAt(position).some(wanted)) this.visible.push(position);
      this.findMatches();
      const at = this.visible.findIndex((position) => position >= this.position);
      this.place = at < 0 ? Math.max(0, this.visible.length - 1) : at;
      if (this.visible.length) this.position = this.visible[this.place];
      for (const pane of this.panes) pane.space.style.height = this.visible.length * ROW + "px";
    }

    draw() {
      for (const pane of this.panes) pane.draw();
      this.showFound();
      this.say();
    }

    go(position, quiet) {
      if (position < 0 || position >= this.count()) return;
      let place = this.visible.indexOf(position);
      if (place < 0) {
        this.filter = this.select.selectedIndex = 0; // asked for an event that is filtered out: show everything again
        this.position = position;
        this.refresh();
        place = this.place;
      }
      this.goPlace(place, quiet);
    }

    goPlace(place, quiet) {
      if (!this.visible.length) return;
      this.place = clamp(place, 0, this.visible.length - 1);
      this.position = this.visible[this.place];
      this.draw();
      if (!quiet) this.host.onStep(this.position + 1);
    }

    move(by) {
      this.pause();
      this.goPlace(this.place + by);
    }

    error(by) {
      this.pause();
      const errors = this.errors();
      const next = by > 0 ? errors.find((position) => position > this.position) : errors.reverse().find((position) => position < this.position);
      if (next === undefined) this.say(errors.length ? `no ${by > 0 ? "later" : "earlier"} error` : "no error in this trace");
      else this.go(next);
    }

    // The next row in which two runs are not the same; after the last one, the first.
    difference(by) {
      if (!this.page.rows) return;
      this.pause();
      const at = (position) => this.page.kinds[position] !== "same";
      let position = this.position;
      for (let n = 0; n < this.count(); n++) {
        position = (position + by + this.count()) % this.count();
        if (at(position)) return this.go(position);
      }
      this.say("the runs do not differ");
    }

    say(extra) {
      const parts = this.page.runs.map((run, index) => {
        const i = this.visible.length ? this.panes[index].eventAt(this.position) : -1;
        const side = this.page.rows ? `${"ab"[index]}: ` : "";
        if (i < 0) return side && side + "no event";
        const event = run.events[i];
        const what = event.e && event.k === "result" ? `ERROR from ${event.n}` : `${event.k} ${event.n || ""}`.trim();
        return `${side}event ${number(i + 1)} of ${number(run.events.length)}: ${what}${event.s ? `, step ${event.s}` : ""}`;
      });
      if (this.page.rows && this.visible.length) {
        const kind = this.page.kinds[this.position];
        parts.push(kind === "same" ? "the same in both" : kind.startsWith("only") ? `only in run ${kind.slice(-1)}` : kind);
        if (this.position === this.page.parted) parts.push("here the runs part");
      }
      if (this.following()) parts.push("following the running trace");
      if (this.page.notice) parts.push(this.page.notice);
      if (extra) parts.push(extra);
      this.status.textContent = parts.filter(Boolean).join(" · ");
    }

    // ---- search and filter
    text(event) {
      return [event.n, event.t, event.says, event.thinks, event.gate, ...(event.a || []).flat(), ...(event.d || []).map((line) => line[1]), ...(event.notes || [])].filter(Boolean).join("\n").toLowerCase();
    }

    has(event) {
      return this.text(event).includes(this.query);
    }

    find(value) {
      this.query = value.trim().toLowerCase();
      this.findMatches();
      const first = [...this.matches].find((position) => position >= this.anchor) ?? [...this.matches][0];
      if (first === undefined) this.draw();
      else this.go(first); // the nearest match from where the search began, while it is being typed
    }

    findMatches() {
      if (this.query && !this.hay) {
        this.hay = [];
        for (let position = 0; position < this.count(); position++) this.hay.push(this.eventsAt(position).map((event) => this.text(event)).join("\n"));
      }
      this.matches = new Set(this.query ? this.visible.filter((position) => this.hay[position].includes(this.query)) : []);
    }

    showFound() {
      if (!this.query) this.found.textContent = "";
      else {
        const before = [...this.matches].filter((position) => position <= this.position).length;
        const here = this.matches.has(this.position) ? before : "–";
        this.found.textContent = this.matches.size ? `${here} of ${number(this.matches.size)}` : "not found";
      }
    }

    nextMatch(by) {
      const places = [...this.matches];
      if (!places.length) return;
      const next = by > 0 ? places.find((p) => p > this.position) ?? places[0] : [...places].reverse().find((p) => p < this.position) ?? places[places.length - 1];
      this.go(next);
    }

    setFilter(filter) {
      this.filter = this.select.selectedIndex = (filter + FILTERS.length) % FILTERS.length;
      this.refresh();
      this.panes.forEach((pane) => (pane.shown = null));
      this.draw();
      this.say(`showing ${FILTERS[this.filter][1]}: ${number(this.visible.length)}`);
    }

    // ---- play, stop, help
    play() {
      if (this.timer) return this.pause();
      this.timer = setInterval(() => {
        if (this.place < this.visible.length - 1) this.goPlace(this.place + 1);
        else if (!this.following()) this.pause();
      }, 700);
      this.playButton.replaceChildren("❚❚ pause");
      this.playButton.setAttribute("aria-label", "pause (space)");
    }

    pause() {
      clearInterval(this.timer);
      this.timer = 0;
      this.playButton.replaceChildren("▶ play");
      this.playButton.setAttribute("aria-label", "play (space)");
    }

    showStop(wanted) {
      if (!wanted && document.activeElement === this.stopButton) this.focus(); // it goes away: keep the focus in here
      if (wanted && this.stopButton.hidden) this.stopButton.replaceChildren("■ stop the run");
      this.stopButton.hidden = !wanted;
    }

    stop() {
      this.stopButton.replaceChildren("■ stopping…");
      this.host.onStop();
    }

    toggleHelp() {
      this.help.hidden = !this.help.hidden;
      this.helpButton.setAttribute("aria-expanded", String(!this.help.hidden));
    }

    focus() {
      if (this.panes.length) this.panes[0].list.focus({ preventScroll: true });
    }

    scrollTogether(top) {
      for (const pane of this.panes) if (Math.abs(pane.list.scrollTop - top) > 1) pane.list.scrollTop = top;
    }

    // ---- keys
    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return; // copying and the browser's own keys
      const target = event.target;
      if (target === this.search) return this.searchKey(event);
      const control = /^(BUTTON|SELECT|SUMMARY)$/.test(target.tagName);
      const scrolls = this.panes.some((pane) => pane.detail === target);
      const pane = this.panes.find((one) => one.element.contains(target)) || this.panes[0];
      const act = {
        ArrowRight: () => this.move(1), ArrowLeft: () => this.move(-1), j: () => this.move(1), k: () => this.move(-1),
        n: () => this.error(1), p: () => this.error(-1), "/": () => this.search.select(), f: () => this.setFilter(this.filter + 1), F: () => this.setFilter(this.filter - 1),
        d: () => this.difference(1), D: () => this.difference(-1), "?": () => this.toggleHelp(), Escape: () => this.leave(pane),
      };
      if (!scrolls) {
        Object.assign(act, {
          ArrowDown: () => this.move(1), ArrowUp: () => this.move(-1), PageDown: () => this.move(10), PageUp: () => this.move(-10),
          Home: () => this.move(-this.place), End: () => this.move(this.visible.length),
        });
      }
      if (!control) Object.assign(act, { " ": () => this.play(), Enter: () => pane && pane.detail.focus({ preventScroll: true }) });
      if (target.tagName === "SELECT" && /^Arrow|^Page|^Home|^End|^.$/.test(event.key)) return; // a select has its own use for these
      if (Object.hasOwn(act, event.key)) {
        event.preventDefault();
        act[event.key]();
      }
    }

    searchKey(event) {
      if (event.key === "Enter") this.nextMatch(event.shiftKey ? -1 : 1);
      else if (event.key === "ArrowDown" || event.key === "ArrowUp") this.nextMatch(event.key === "ArrowDown" ? 1 : -1);
      else if (event.key === "Escape") this.focus();
      else return;
      event.preventDefault();
    }

    leave(pane) {
      if (this.query) {
        this.search.value = "";
        this.find("");
      } else if (this.filter) this.setFilter(0);
      if (pane) pane.list.focus({ preventScroll: true });
    }

    remove() {
      this.pause();
      this.panes.forEach((pane) => pane.remove());
    }
  }

  // In a notebook: data come as bytes, the step goes back after 120 ms of quiet. `interrupt(id)` stops a kernel that hears no message.
  function render({ model, el }, interrupt) {
    const root = make("div", "");
    el.append(root);
    const read = () => JSON.parse(new TextDecoder().decode(model.get("data")));
    let timer = 0;
    const stepper = new Stepper(root, {
      onStep(step) {
        clearTimeout(timer);
        timer = setTimeout(() => {
          model.set("step", step);
          model.save_changes();
        }, 120);
      },
      onStop() {
        if (!stepper.page.kernel) model.send({ stop: true });
        else interrupt(stepper.page.kernel).catch(() => stepper.stopButton.replaceChildren("press the notebook's own ■ button"));
      },
    });
    const newData = () => stepper.setPage(read());
    const newStep = () => model.get("step") !== stepper.position + 1 && stepper.go(model.get("step") - 1, true);
    model.on("change:data", newData);
    model.on("change:step", newStep);
    newData();
    if (model.get("step") > 0) newStep();
    else if (stepper.following()) stepper.go(stepper.count() - 1, true);
    const onPage = new ResizeObserver(() => {
      const output = el.closest(".jp-OutputArea-output");
      if (!output) return;
      keepKeys(output); // keys in the menus beside the stepper are no shortcuts either
      onPage.disconnect();
    });
    onPage.observe(el);
    return () => {
      clearTimeout(timer);
      onPage.disconnect();
      model.off("change:data", newData);
      model.off("change:step", newStep);
      stepper.remove();
    };
  }

  // In the HTML file: data stand in a script element; the address ends with the number of the step, so that a link can point at it.
  function openPage() {
    const root = document.getElementById("harnesslab-stepper");
    const page = JSON.parse(document.getElementById("harnesslab-data").textContent);
    let timer = 0;
    const stepper = new Stepper(root, {
      onStep(step) {
        clearTimeout(timer);
        timer = setTimeout(() => history.replaceState(null, "", `#${step}`), 120);
      },
      onStop() {},
    });
    const fromAddress = () => stepper.go((parseInt(location.hash.slice(1), 10) || 1) - 1, true);
    stepper.setPage(page);
    fromAddress();
    stepper.focus();
    window.addEventListener("hashchange", fromAddress);
    return stepper;
  }

  return { Stepper, render, openPage };
})();
