"use strict";
// The page of `cgdebug-cli report`: reads the JSON in #data and draws it with d3. Text that comes
// from a job is only ever put into text nodes, and into attributes that nothing runs.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const isTwo = data.sources.length === 2;
  const sidesOfAll = data.probes.flatMap((probe) => [probe.a, probe.b]).filter(Boolean);
  for (const side of sidesOfAll) if (side.first_bad === "last") side.first_bad = side.last;
  const isOfCalls = sidesOfAll.length > 0 && sidesOfAll.every((side) => side.in_body && side.graph_id === 0);
  const WORD = isOfCalls ? "call" : "replay";
  const axis = data.axis;
  const byId = (id) => document.getElementById(id);
  document.body.classList.toggle("two", isTwo);

  // --- text ---------------------------------------------------------------------------------------

  const printable = (text) =>
    String(text).replace(
      /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
      (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"),
    );
  const plain = d3.format(".4~r"), scientific = d3.format(".3~e");
  // Four digits, and it shows that they are rounded; a whole number that a float holds has all of them.
  const significant = (value) => {
    const magnitude = Math.abs(value);
    if (Number.isInteger(value) && magnitude < 2 ** 24) return String(value);
    return magnitude >= 1e-3 && magnitude < 1e4 ? plain(value) : scientific(value).replace("e+", "e");
  };
  function number(value) {
    if (value === null || value === undefined) return "–";
    if (typeof value === "string") return value === "NaN" ? "–" : value;
    if (Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return value > 0 ? "Infinity" : "-Infinity";
    return significant(value).replace("−", "-");
  }
  const count = (value) => d3.format(",")(value).replace(/,/g, "\u202f");
  const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

  // make("p", {class: "note"}, "text", child, ...)
  function make(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "on") for (const [event, run] of Object.entries(value)) node.addEventListener(event, run);
      else if (value === true) node.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
    }
    for (const child of children.flat()) {
      if (child === null || child === undefined) continue;
      node.append(child instanceof Node ? child : printable(child));
    }
    return node;
  }

  const shellWord = (text) => {
    const clean = printable(text);
    return /^[A-Za-z0-9._\/:+,=%@-]+$/.test(clean) ? clean : "'" + clean.replace(/'/g, "'\\''") + "'";
  };
  function selectorOf(source, side, replay) {
    const name = data.sources[source].name;
    return shellWord((name === "live" ? "" : name + ":") + side.selector + "@" + replay);
  }
  // Which rank, and which job if a source has several.
  function ownerOf(source, side) {
    const others = data.probes.map((probe) => (source === 0 ? probe.a : probe.b)).filter(Boolean);
    const hasJobs = others.some((one) => one.rank === side.rank && one.session !== side.session);
    return (side.rank >= 0 ? ` --ranks ${side.rank}` : "") + (hasJobs ? ` -s ${shellWord(side.session)}` : "");
  }
  function showCommand(source, side, replay, isBad) {
    const hasElements = isBad && side.first_bad && side.first_bad.has_values;
    return `cgdebug-cli show ${selectorOf(source, side, replay)}${ownerOf(source, side)}${hasElements ? " --where nan" : ""}`;
  }
  // Of a column that stands for several replays.
  function columnCommand(source, side, column, isBad) {
    const [first, last] = replaysOf(column);
    return `cgdebug-cli ${isBad ? "check" : "stats"} ${shellWord(data.sources[source].name)} ${shellWord(side.probe)} --replays ${first}..${last}${ownerOf(source, side)}`;
  }
  function command(text) {
    const button = make("button", { type: "button", "aria-label": "Copy the command" }, "Copy");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(button.previousElementSibling);
        button.textContent = "Selected";
      }
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    return make("div", { class: "command" }, make("code", { tabindex: 0 }, text), button);
  }

  // --- numbers ------------------------------------------------------------------------------------

  const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  function series(given) {
    if (!given) return null;
    if (given.u1 !== undefined) return bytesOf(given.u1);
    const bytes = bytesOf(given.f4 !== undefined ? given.f4 : given.f8).buffer;
    return given.f4 !== undefined ? new Float32Array(bytes) : new Float64Array(bytes);
  }
  const at = (values, i) => (values === null ? NaN : values[i]);
  const THERE = 1, GAP = 2, UNREAD = 4;
  const EQUAL = 1, DIFFERENT = 2, NOT_COMPARED = 4, BY_NONFINITE = 8;

  function stripOf(given) {
    if (!given) return null;
    const strip = {};
    for (const [name, value] of Object.entries(given)) strip[name] = series(value);
    if (strip.max_abs !== undefined) return strip;
    strip.absMax = Float64Array.from(strip.state, (_, i) =>
      Math.max(Math.abs(at(strip.min, i)), Math.abs(at(strip.max, i))));
    return strip;
  }

  const lines = data.probes.map((probe, place) => {
    const side = probe.a || probe.b;
    const strips = data.strips[place];
    const line = {
      place, side, a: probe.a, b: probe.b, difference: probe.difference,
      name: printable(side.name) + (side.rank >= 0 ? ` · rank ${side.rank}` : ""),
      strips: { a: stripOf(strips.a), b: stripOf(strips.b), difference: stripOf(strips.difference) },
    };
    // `check` says that these hold -Inf, maybe on purpose.
    line.isMask = side.findings.some((finding) => finding.kind === "mask") && !side.findings.some((finding) => finding.bad);
    line.isNonfinite = !line.isMask && [probe.a, probe.b].some((one) => one && one.nonfinite_snapshots > 0);
    line.hasNan = ["a", "b"].some((which) => line.strips[which] && line.strips[which].nan);
    line.isLossy = [probe.a, probe.b].some((one) => one && (one.lost > 0 || one.unread > 0 || one.gap_count > 0));
    line.differs = Boolean(probe.difference && probe.difference.different > 0) || (isTwo && !(probe.a && probe.b));
    line.isBad = line.isNonfinite || line.differs || side.findings.some((finding) => finding.bad);
    line.hasFinding = line.isBad || line.isLossy || line.isMask;
    return line;
  });
  const hasGraphs = new Set(lines.map((line) => line.side.session + "\n" + line.side.graph)).size > 1;
  const shownGraph = (side) => (side.graph === "" ? (side.graph_id === 0 ? "eager" : "graph " + side.graph_id) : side.graph);

  // The replays of a column.
  function replaysOf(column) {
    const first = axis.first + column * axis.replays_per_column;
    return [first, Math.min(axis.last, first + axis.replays_per_column - 1)];
  }
  function replaysText(column, columns = 1) {
    const first = replaysOf(column)[0], last = replaysOf(column + columns - 1)[1];
    return first === last ? `${WORD} ${first}` : `${WORD}s ${first}..${last}`;
  }
  const columnOf = (replay) =>
    Math.max(0, Math.min(axis.columns - 1, Math.floor((replay - axis.first) / axis.replays_per_column)));

  // --- the verdict --------------------------------------------------------------------------------

  function drawVerdict() {
    const verdict = data.verdict;
    const words = {
      found: "✗ Found", clear: "✓ Nothing found", inconclusive: "? Inconclusive",
      different: "≠ Different", same: "= Same", empty: "No probe",
    };
    byId("verdict").classList.add(verdict.kind);
    byId("verdict-kind").textContent = words[verdict.kind];
    byId("verdict-summary").textContent = `All that cgdebug-cli ${isTwo ? "diff" : "check"} says`;
    const more = [];
    const line = verdict.place === null ? null : lines[verdict.place];
    if (line && !isTwo && line.side.first_bad) {
      const bad = line.side.first_bad;
      const parts = [["nan", "NaN"], ["pos_inf", "+Inf"], ["neg_inf", "-Inf"]]
        .filter(([name]) => bad[name] > 0).map(([name, word]) => `${count(bad[name])} ${word}`);
      more.push(`${parts.join(", ")} of ${plural(bad.count, "element")}, the first at ${bad.first_nonfinite.place}.`);
      const spread = lines.filter((one) => one.isNonfinite).length;
      const of = data.left_out.lines > 0 ? "rows in this page" : "probes";
      if (spread > 1) more.push(`In the end ${spread} of ${lines.length} ${of} have NaN or Inf.`);
    }
    if (isTwo && verdict.kind === "different") {
      const differing = lines.filter((one) => one.differs).length + data.left_out.with_findings;
      more.push(`${differing} of ${plural(lines.length + data.left_out.lines, "probe")} differ.`);
    }
    if (verdict.missing_count > 0) more.push(`Missing: ${verdict.missing[0]}.` +
      (verdict.missing.length > 1 ? ` And ${plural(verdict.missing.length - 1, "more reason")}.` : ""));
    byId("verdict-more").textContent = printable(more.join(" "));

    const names = data.sources.map((source) => shellWord(source.name));
    const next = byId("next");
    if (line && isTwo) next.append(command(`cgdebug-cli diff --first ${names.join(" ")} --topk 5`));
    if (line) {
      const source = line.a ? 0 : 1;
      next.append(command(showCommand(source, line.side, verdict.replay, !isTwo && line.isNonfinite)));
    } else if (verdict.missing_count > 0) {
      next.append(command(`cgdebug-cli info ${names[0]}`));
    }
    byId("sources").append(...data.sources.map((source, i) => make("li", {},
      isTwo ? make("span", { class: "side-name " + "ab"[i] }, "AB"[i] + " ") : null,
      make("b", {}, source.name), ` ${source.kind}`,
      source.account.kept > 0 ? `, ${plural(source.account.kept, "snapshot")}` : "",
      source.ranks ? `, ${source.ranks}` : "",
      source.is_growing ? ", still growing" : source.is_cut_off ? ", its end is missing" : "")));
  }

  // --- colours ------------------------------------------------------------------------------------

  let colours = {};
  function readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["panel", "text", "soft", "line", "nan", "inf", "gap", "none", "same", "different", "accent", "zero", "page"]) {
      colours[name] = style.getPropertyValue("--" + name).trim();
    }
    colours.isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  }
  const scales = {};
  function makeScales() {
    let least = Infinity, most = 0, leastApart = Infinity, mostApart = 0;
    for (const line of lines) {
      for (const name of ["a", "b"]) {
        const strip = line.strips[name];
        if (!strip) continue;
        for (const value of strip.absMax) {
          if (!(value > 0)) continue;
          least = Math.min(least, value);
          most = Math.max(most, value);
        }
        const sorted = Array.from(strip.absMax).filter((value) => value > 0).sort(d3.ascending);
        strip.median = sorted.length ? sorted[sorted.length >> 1] : NaN;
      }
      const apart = line.strips.difference;
      for (const value of (apart && apart.max_abs) || []) {
        if (!(value > 0)) continue;
        leastApart = Math.min(leastApart, value);
        mostApart = Math.max(mostApart, value);
      }
    }
    if (most === 0) least = most = 1;
    // Below a billionth of the greatest, magnitudes look alike.
    scales.least = Math.max(least, most * 1e-9);
    scales.most = most;
    scales.leastApart = mostApart ? Math.max(leastApart, mostApart * 1e-12) : 1;
    scales.mostApart = mostApart || 1;
  }
  const shareOfLog = (value, least, most) =>
    most / least < 1.0001 ? 0.5 : Math.min(1, Math.max(0, Math.log(value / least) / Math.log(most / least)));
  // Dark to light, short of the yellow that would look like Inf.
  const ofShare = (share) => d3.interpolateViridis(0.04 + 0.86 * share);
  const ofRatio = (ratio) => {
    const share = Math.min(1, Math.max(-1, Math.log2(ratio) / 8));
    return d3.interpolateRgb(colours.isDark ? "#3b4252" : "#e4e7ec", share < 0 ? "#2b6cb0" : colours.isDark ? "#e8b04a" : "#7a3e9d")(Math.sqrt(Math.abs(share)));
  };
  function valueColour(value, median) {
    if (value === 0) return colours.zero;
    if (!(value > 0)) return colours.none;
    if (byId("mode").value === "relative") return ofRatio(value / median);
    return ofShare(shareOfLog(value, scales.least, scales.most));
  }

  // --- cells --------------------------------------------------------------------------------------

  // What one cell shows: the worst of columns begin..end-1, of one or several strips.
  function cellOf(strips, begin, end) {
    const cell = { state: 0, value: NaN, nan: 0, inf: 0, ratio: NaN, median: NaN };
    for (const strip of strips) {
      for (let i = begin; i < end; ++i) {
        cell.state |= strip.state[i];
        cell.nan += at(strip.nan, i) || 0;
        cell.inf += at(strip.inf, i) || 0;
        const value = strip.absMax[i];
        const isWorse = byId("mode").value === "relative" && strips.length > 1
          ? !(value / strip.median <= cell.value / cell.median) : !(value <= cell.value);
        if (!Number.isNaN(value) && isWorse) {
          cell.value = value;
          cell.median = strip.median;
        }
      }
    }
    return cell;
  }
  function apartOf(strips, begin, end) {
    const cell = { state: 0, value: NaN };
    for (const strip of strips) {
      for (let i = begin; i < end; ++i) {
        cell.state |= strip.state[i];
        const value = at(strip.max_abs, i);
        if (!Number.isNaN(value) && !(value <= cell.value)) cell.value = value;
      }
    }
    return cell;
  }

  function hatch(context, x, y, width, height, colour) {
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.strokeStyle = colour;
    context.lineWidth = 1.2;
    context.beginPath();
    for (let from = Math.floor((x - height) / 5) * 5; from < x + width; from += 5) {
      context.moveTo(from, y + height);
      context.lineTo(from + height, y);
    }
    context.stroke();
    context.restore();
  }
  // A sign that is seen without colours too. Narrow cells have lines instead of a letter.
  function sign(context, text, x, width, height, colour) {
    context.fillStyle = context.strokeStyle = colour;
    if (width >= 9 && height >= 12) {
      context.font = `700 ${Math.min(12, height - 4)}px system-ui, "DejaVu Sans", sans-serif`;
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillText(text, x + width / 2, height / 2 + 0.5);
    } else if (text === "N") {
      context.fillRect(x, height / 2 - 1.5, width, 3);
    } else if (text === "≠") {
      context.fillRect(x, height / 2 - 1, width, 2);
    } else {
      context.fillRect(x, 2, width, 2);
      context.fillRect(x, height - 4, width, 2);
    }
  }
  function paintCell(context, cell, x, width, height) {
    // Narrow cells overlap a little, so that no seam shows; wide ones have a gap.
    const inner = width >= 4 ? width - 1 : width + 0.6;
    if (cell.state & THERE) {
      context.fillStyle = cell.nan > 0 ? colours.nan : cell.inf > 0 ? colours.inf : valueColour(cell.value, cell.median);
      context.fillRect(x, 0, inner, height);
      const ink = colours.isDark ? "#14161c" : "#ffffff";
      if (cell.nan > 0) sign(context, "N", x, inner, height, ink);
      else if (cell.inf > 0) sign(context, "∞", x, inner, height, colours.isDark ? "#14161c" : "#241300");
      if (cell.state & (GAP | UNREAD)) hatch(context, x, height - 6, inner, 6, colours.isDark ? "#000" : "#fff");
    } else if (cell.state & (GAP | UNREAD)) {
      context.fillStyle = colours.none;
      context.fillRect(x, 0, inner, height);
      hatch(context, x, 0, inner, height, colours.gap);
    }
  }
  function paintApart(context, cell, x, width, height) {
    const inner = width >= 4 ? width - 1 : width + 0.6;
    if (cell.state & DIFFERENT) {
      const isBad = (cell.state & BY_NONFINITE) !== 0;
      const share = isBad || Number.isNaN(cell.value) ? 1 : shareOfLog(cell.value, scales.leastApart, scales.mostApart);
      context.fillStyle = isBad ? colours.nan : d3.interpolateRgb(colours.isDark ? "#7a4a33" : "#f3b48f", colours.different)(share);
      context.fillRect(x, 0, inner, height);
      sign(context, isBad ? "N" : "≠", x, inner, height, colours.isDark ? "#14161c" : share > 0.5 ? "#ffffff" : "#331405");
    } else if (cell.state & EQUAL) {
      context.fillStyle = colours.same;
      context.fillRect(x, 0, inner, height);
    }
    if (cell.state & NOT_COMPARED) hatch(context, x, cell.state === NOT_COMPARED ? 0 : height - 6, inner, height, colours.gap);
  }

  // How the columns are laid out in `width` pixels.
  function layoutOf(width) {
    const per = Math.max(1, Math.ceil((axis.columns * 2) / Math.max(1, width)));
    const cells = Math.ceil(axis.columns / per);
    return { per, cells, cellWidth: width / Math.max(1, cells) };
  }
  function paint(canvas) {
    const { strips, isApart } = canvas.cgdebug;
    const width = canvas.clientWidth, height = canvas.clientHeight, ratio = devicePixelRatio || 1;
    if (width === 0) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.clearRect(0, 0, width, height);
    const layout = layoutOf(width);
    canvas.cgdebug.layout = layout;
    for (let i = 0; i < layout.cells; ++i) {
      const begin = i * layout.per, end = Math.min(axis.columns, begin + layout.per);
      const x = i * layout.cellWidth;
      if (isApart) paintApart(context, apartOf(strips, begin, end), x, layout.cellWidth, height);
      else paintCell(context, cellOf(strips, begin, end), x, layout.cellWidth, height);
    }
    if (state.column !== null) {
      const i = Math.floor(state.column / layout.per);
      context.strokeStyle = colours.text;
      context.lineWidth = canvas.cgdebug.isCurrent ? 2 : 1;
      context.globalAlpha = canvas.cgdebug.isCurrent ? 1 : 0.45;
      context.strokeRect(i * layout.cellWidth + 0.5, 0.5, Math.max(2, layout.cellWidth - 1), height - 1);
    }
  }
  const visible = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        visible.add(entry.target);
        paint(entry.target);
      } else {
        visible.delete(entry.target);
      }
    }
  }, { rootMargin: "200px" });
  const repaint = () => visible.forEach((canvas) => paint(canvas));

  // --- the overview -------------------------------------------------------------------------------

  const state = { place: null, column: null, folded: new Map() };
  const heads = isTwo ? ["a", "b", "difference"] : ["a"];

  function cellText(canvas, column) {
    const { strips, isApart, label } = canvas.cgdebug, { per } = canvas.cgdebug.layout;
    const begin = Math.floor(column / per) * per, end = Math.min(axis.columns, begin + per);
    const text = [label, replaysText(begin, end - begin)];
    if (isApart) {
      const cell = apartOf(strips, begin, end);
      if (cell.state & BY_NONFINITE) text.push("differs by NaN or Inf");
      if (cell.state & DIFFERENT) text.push("different" + (cell.value > 0 ? `, by up to ${number(cell.value)}` : ""));
      else if (cell.state & EQUAL) text.push("equal");
      if (cell.state & NOT_COMPARED) text.push("not all compared");
      if (cell.state === 0) text.push("nothing to compare");
      return text.join("\n");
    }
    const cell = cellOf(strips, begin, end);
    if (cell.nan > 0) text.push(`${count(cell.nan)} NaN`);
    if (cell.inf > 0) text.push(`${count(cell.inf)} Inf`);
    if (!Number.isNaN(cell.value)) text.push(`abs max ${number(cell.value)}`);
    if (cell.state & GAP) text.push("snapshots are missing here");
    if (cell.state & UNREAD) text.push("a snapshot cannot be read");
    if (cell.state === 0) text.push("no snapshot");
    return text.join("\n");
  }
  function columnAt(canvas, event) {
    const box = canvas.getBoundingClientRect(), { per, cells } = canvas.cgdebug.layout;
    const cell = Math.min(cells - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * cells)));
    return cell * per;
  }
  // The column of a cell that has what the cell shows.
  function worstColumn(canvas, column) {
    const { strips, isApart, layout } = canvas.cgdebug;
    const ranks = d3.range(column, Math.min(axis.columns, column + layout.per)).map((i) => {
      const cell = (isApart ? apartOf : cellOf)(strips, i, i + 1);
      const bits = isApart ? [BY_NONFINITE, DIFFERENT, NOT_COMPARED, EQUAL] : [THERE, GAP, UNREAD];
      const kind = cell.nan > 0 ? 9 : cell.inf > 0 ? 8 : bits.length - bits.findIndex((bit) => (cell.state & bit) !== 0);
      return [cell.state === 0 ? 0 : kind, Number.isNaN(cell.value) ? -1 : cell.value, i];
    });
    return ranks.reduce((worst, one) => (one[0] > worst[0] || (one[0] === worst[0] && one[1] > worst[1]) ? one : worst))[2];
  }
  function showTip(text, event) {
    const tip = byId("tip");
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(innerWidth - box.width - 8, event.clientX + 14)) + "px";
    tip.style.top = Math.max(4, Math.min(innerHeight - box.height - 8, event.clientY + 16)) + "px";
  }
  const hideTip = () => (byId("tip").hidden = true);

  function stripCanvas(strips, which, label, onPick) {
    const own = strips.map((one) => one[which]).filter(Boolean);
    const canvas = make("canvas", { "aria-hidden": "true" });
    canvas.cgdebug = { strips: own, isApart: which === "difference", label, layout: layoutOf(100) };
    canvas.addEventListener("mousemove", (event) => axis.columns && showTip(cellText(canvas, columnAt(canvas, event)), event));
    canvas.addEventListener("mouseleave", hideTip);
    canvas.addEventListener("click", (event) => axis.columns && onPick(worstColumn(canvas, columnAt(canvas, event))));
    watcher.observe(canvas);
    return canvas;
  }
  // What a screen reader hears of a row.
  function summary(line) {
    const parts = [line.name];
    const side = line.side;
    if (side.first_bad) parts.push(`first NaN or Inf in ${WORD} ${side.first_bad.replay}`);
    if (line.difference && line.difference.different > 0) parts.push(`differs from ${WORD} ${line.difference.first_different} on`);
    if (isTwo && !(line.a && line.b)) parts.push(`only in ${line.a ? "A" : "B"}`);
    if (line.isLossy) parts.push("has gaps");
    return parts.join(", ");
  }
  const markOf = (line) => (line.isNonfinite ? (line.hasNan ? "N " : "∞ ") : line.differs ? "≠ " : line.isBad ? "! " : "");
  let longest = 34;  // characters of a name that have room
  // What all names begin with, and end with, up to a dot.
  const shared = sharedEnds(lines.map((line) => line.name));
  function sharedEnds(names) {
    const lengthOf = (charOf) => {
      let length = 0;
      while (names.length > 1 && charOf(names[0], length) && names.every((name) => charOf(name, length) === charOf(names[0], length))) length++;
      return length;
    };
    const head = names[0]?.slice(0, lengthOf((name, i) => name[i])) ?? "";
    const tail = names[0]?.slice(names[0].length - lengthOf((name, i) => name[name.length - 1 - i])) ?? "";
    return { head: head.slice(0, Math.max(head.lastIndexOf("."), head.lastIndexOf("/")) + 1), tail: tail.includes(".") ? tail.slice(tail.indexOf(".")) : "" };
  }
  // Columns of text: a letter of Chinese, Japanese or Korean takes two.
  const widthOf = (text) => text.length + (text.match(/[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60]/g) || []).length;
  // What tells a probe from its neighbours stays: first goes what all begin with, then the middle.
  function inRoom(name) {
    if (widthOf(name) <= longest) return name;
    const own = shared.head && name.startsWith(shared.head) ? "…" + name.slice(shared.head.length) : name;
    if (widthOf(own) <= longest) return own;
    const room = Math.floor((longest * own.length) / widthOf(own));  // in characters
    const unlike = shared.tail && own.endsWith(shared.tail) ? own.length - shared.tail.length : 0;
    const usual = room - Math.ceil(room * 0.65) - 1;
    const start = unlike > usual && unlike <= room - 8 ? unlike : usual;
    return `${own.slice(0, start)}…${own.slice(start + 1 - room)}`;
  }
  // Below the heading of its module: the rest of its name.
  function rowOf(line, group) {
    const name = group ? line.name.slice(group.prefix.length) || line.name : line.name;
    const button = make("button", { type: "button", "aria-label": summary(line), title: line.name },
      make("span", { class: "mark" }, markOf(line)), inRoom(name));
    button.addEventListener("click", () => pick(line.place, state.column));
    const strips = make("div", { class: "strips" }, heads.map((which) =>
      stripCanvas([line.strips], which, line.name, (column) => pick(line.place, column))));
    const row = make("div", { class: "row" + (group ? " member" : "") }, button, strips);
    row.dataset.place = line.place;
    return row;
  }

  // Probes that follow each other and belong to one module: "fwd/layers.3.attn" to "fwd/layers.3".
  function moduleOf(side) {
    const parts = side.name.split(/(?<=[./])/);
    const numbered = parts.findIndex((part, i) => /\d/.test(part) && i < parts.length - 1);
    const module = numbered >= 0 ? parts.slice(0, numbered + 1).join("") : parts.length > 1 ? parts[0] : "";
    const graph = hasGraphs ? ` @ ${shownGraph(side)}` + (data.sources[0].sessions.length > 1 ? ` of ${side.session}` : "") : "";
    return { name: printable(module.replace(/[./]$/, "") || "(top)") + printable(graph), prefix: printable(module), key: JSON.stringify([side.session, side.graph, module]) };
  }
  const groups = [];
  for (const line of lines) {
    const module = moduleOf(line.side);
    const last = groups[groups.length - 1];
    if (last && last.key === module.key) last.lines.push(line);
    else groups.push({ ...module, lines: [line] });
  }
  const isGrouped = lines.length > 40 || hasGraphs;
  const isFolded = (group) => state.folded.get(group) ?? (lines.length > 40 && group.lines.length > 1);

  function matcher() {
    const text = byId("search").value.trim().toLowerCase();
    const onlyFindings = byId("only-findings").checked;
    let matches = (name) => name.includes(text);
    if (/[*?]/.test(text)) {
      const pattern = new RegExp("^" + text.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*/g, ".*").replace(/\?/g, ".") + "$");
      matches = (name) => pattern.test(name);
    }
    return { isActive: text !== "" || onlyFindings, wants: (line) => matches(line.name.toLowerCase()) && (!onlyFindings || line.hasFinding) };
  }
  function groupRow(group, members, unfolded) {
    const bad = members.filter((line) => line.isBad).length;
    const marks = members.map(markOf);
    const mark = ["N ", "∞ ", "≠ ", "! "].find((one) => marks.includes(one)) || "";
    const button = make("button", { type: "button", "aria-expanded": String(unfolded),
      "aria-label": `${group.name}, ${plural(members.length, "probe")}${bad ? `, ${bad} with findings` : ""}` },
      (unfolded ? "▾ " : "▸ "), make("span", { class: "mark" }, mark), `${inRoom(group.name)} (${members.length})`);
    const toggle = () => {
      state.folded.set(group, unfolded);
      drawRows();
      const again = [...byId("rows").querySelectorAll(".group > button")].find((one) => one.getAttribute("aria-label").startsWith(group.name + ","));
      if (again) again.focus();
    };
    button.addEventListener("click", toggle);
    const strips = make("div", { class: "strips" }, unfolded ? [] : heads.map((which) =>
      stripCanvas(members.map((line) => line.strips), which, `${group.name}, the worst of ${members.length}`, toggle)));
    return make("div", { class: "row group" }, button, strips);
  }
  function drawRows() {
    watcher.disconnect();
    visible.clear();
    const filter = matcher();
    const rows = [];
    let shown = 0;
    for (const group of groups) {
      const members = group.lines.filter(filter.wants);
      if (members.length === 0) continue;
      shown += members.length;
      const hasHead = isGrouped && ((filter.isActive ? members : group.lines).length > 1 || hasGraphs);
      const unfolded = !hasHead || filter.isActive || !isFolded(group);
      if (hasHead) rows.push(groupRow(group, members, unfolded));
      if (unfolded) rows.push(...members.map((line) => rowOf(line, hasHead ? group : null)));
    }
    byId("rows").replaceChildren(...rows);
    byId("none").hidden = shown > 0;
    byId("none").textContent = lines.length === 0 ? "There is no probe in it." : "No probe matches.";
    markCurrent();
    byId("search").setAttribute("aria-description", `${shown} of ${lines.length} probes shown`);
    const hidden = data.left_out;
    byId("left-out").hidden = hidden.lines === 0;
    byId("left-out").textContent = `${count(hidden.lines)} more of ${count(hidden.lines + lines.length)} rows are not in this page, ` +
      (hidden.with_findings > 0 ? `${count(hidden.with_findings)} of them with findings. ` : "none of them with a finding. ") +
      `To see some of them: cgdebug-cli report ${data.sources.map((source) => shellWord(source.name)).join(" ")} 'PROBE'`;
  }
  function markCurrent() {
    for (const row of byId("rows").querySelectorAll(".row[data-place]")) {
      const isCurrent = Number(row.dataset.place) === state.place;
      row.classList.toggle("current", isCurrent);
      row.firstElementChild.setAttribute("aria-current", String(isCurrent));
      row.querySelectorAll("canvas").forEach((canvas) => (canvas.cgdebug.isCurrent = isCurrent));
    }
  }

  function drawHeads() {
    const names = { a: isTwo ? "A" : "", b: "B", difference: "A against B" };
    const boxes = heads.map((which) => {
      const svg = d3.create("svg").attr("class", "axis").attr("aria-hidden", "true");
      return make("div", {}, isTwo ? make("div", { class: "head" }, names[which] + (which === "difference" ? "" : ` ${data.sources["ab".indexOf(which)].name}`)) : null, svg.node());
    });
    byId("heads").replaceChildren(make("div", { class: "head" }), make("div", { class: "strips" }, boxes));
    if (axis.columns === 0) return;
    for (const box of boxes) {
      const svg = d3.select(box.querySelector("svg")), width = box.clientWidth;
      const scale = d3.scaleLinear().domain([axis.first, axis.first + axis.columns * axis.replays_per_column]).range([0, width]);
      const ticks = scale.ticks(Math.max(2, width / 70)).filter((tick) => Number.isInteger(tick) && tick <= axis.last);
      const half = axis.replays_per_column === 1 ? scale(axis.first + 0.5) : 0;
      const isAtEnd = (tick) => scale(tick) + half > width - 18;
      const last = ticks.at(-1);
      // The text at the end reaches back to the one before it.
      const shown = ticks.filter((tick) => tick === last || !isAtEnd(last) || scale(last) - scale(tick) > 12 * String(last).length);
      svg.append("g").attr("transform", `translate(${half},21)`)
        .call(d3.axisTop(scale).tickValues(shown).tickFormat(d3.format("d")).tickSize(4)).call((group) => group.select(".domain").remove())
        .selectAll("text").attr("text-anchor", (tick) => (isAtEnd(tick) ? "end" : "middle"));
    }
    const layout = layoutOf(boxes[0].clientWidth);
    const replays = axis.replays_per_column * layout.per;
    byId("overview-title").textContent = `Probes over ${WORD}s`;
    byId("caption").textContent = replays === 1
      ? `Rows are probes in graph order, columns are ${WORD}s. Click a cell.`
      : `Rows are probes in graph order. Each column stands for ${replays} ${WORD}s and shows the worst of them: a NaN before an Inf before the greatest abs max. Click a cell.`;
  }
  function drawLegend() {
    const swatch = (painter, width = 26) => {
      const canvas = make("canvas", { "aria-hidden": "true" }), ratio = devicePixelRatio || 1;
      canvas.width = width * ratio;
      canvas.height = 14 * ratio;
      canvas.style.width = width + "px";
      canvas.style.height = "14px";
      const context = canvas.getContext("2d");
      context.scale(ratio, ratio);
      painter(context, width);
      return canvas;
    };
    const one = (cell) => swatch((context, width) => paintCell(context, { value: NaN, nan: 0, inf: 0, ...cell }, 0, width, 14));
    const apart = (cell) => swatch((context, width) => paintApart(context, { value: NaN, ...cell }, 0, width, 14));
    const isRelative = byId("mode").value === "relative";
    const ramp = swatch((context, width) => {
      for (let x = 0; x < width; ++x) {
        context.fillStyle = isRelative ? ofRatio(2 ** ((x / width) * 16 - 8)) : ofShare(x / width);
        context.fillRect(x, 0, 1.5, 14);
      }
    }, 110);
    const parts = [make("span", {}, isRelative ? "1/256" : number(scales.least), ramp, isRelative ? "256 times the median" : `${number(scales.most)} abs max`),
      make("span", {}, one({ state: THERE, value: 0 }), "all zero"),
      make("span", {}, one({ state: THERE, nan: 1 }), "NaN"),
      make("span", {}, one({ state: THERE, inf: 1 }), "Inf"),
      make("span", {}, one({ state: GAP }), "missing or unreadable"),
      make("span", {}, swatch((context, width) => { context.strokeStyle = colours.line; context.strokeRect(0.5, 0.5, width - 1, 13); }), "no snapshot")];
    if (isTwo) parts.push(make("span", {}, apart({ state: EQUAL }), "equal"), make("span", {}, apart({ state: DIFFERENT }), "different"), make("span", {}, apart({ state: DIFFERENT | BY_NONFINITE }), "by NaN or Inf"),
      make("span", {}, apart({ state: NOT_COMPARED }), "not compared"));
    byId("legend").replaceChildren(...parts);
  }

  // --- one probe ----------------------------------------------------------------------------------

  const LEFT = 48, RIGHT = 8;
  // The width of a chart, and of one below both sides, as the style sheet makes them: where a unit is a
  // pixel, the text of the axes is as large as other text.
  let PLOT = 460, WIDE = 460;
  function measure(sides) {
    const detail = byId("detail"), style = getComputedStyle(detail), gap = 16;
    const room = detail.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const fit = (width) => Math.round(Math.max(240, Math.min(720, width)));
    PLOT = fit(sides > 1 && innerWidth > 560 ? (room - gap) / 2 : room);
    WIDE = fit(room);
  }
  // Powers of ten where the values span more than two of them.
  function scaleFor(values, height, logFrom = 100) {
    const finite = values.filter(Number.isFinite);
    let least = d3.min(finite), most = d3.max(finite);
    if (least === undefined) return null;
    const magnitudes = finite.map(Math.abs).filter((value) => value > 0);
    const spread = magnitudes.length ? d3.max(magnitudes) / d3.quantile(magnitudes.sort(d3.ascending), 0.1) : 1;
    if (least === most) { const pad = Math.abs(least) * 0.1 || 1; least -= pad; most += pad; }
    if (spread > logFrom && least > 0) return { scale: d3.scaleLog().domain([least, most]).nice().range([height, 0]), isLog: true };
    if (spread > logFrom) {
      const linear = d3.quantile(magnitudes, 0.1);
      return { scale: d3.scaleSymlog().constant(linear).domain([least, most]).range([height, 0]), isLog: true, linear };
    }
    return { scale: d3.scaleLinear().domain([least, most]).nice().range([height, 0]), isLog: false };
  }
  function ticksOf(found) {
    if (!found.isLog) return found.scale.ticks(Math.max(...found.scale.range()) < 100 ? 3 : 4);
    const [least, most] = found.scale.domain();
    const powers = [];
    for (let power = Math.ceil(Math.log10(Math.max(Math.abs(least), Math.abs(most)))); power > -320 && powers.length < 320; --power) {
      const value = 10 ** power;
      if (found.linear !== undefined && value < found.linear / 2) break;
      if (found.linear === undefined && value < least * 0.999) break;
      powers.push(value);
    }
    const step = Math.max(1, Math.ceil(powers.length / (found.linear === undefined ? 4 : 3)));
    const some = powers.filter((_, i) => i % step === 0);
    const all = found.linear === undefined ? some : [...some, 0, ...some.map((value) => -value)];
    const inside = all.filter((value) => value >= least && value <= most).sort((x, y) => Math.abs(y) - Math.abs(x));
    const apart = [];
    for (const value of inside) {
      if (apart.every((other) => Math.abs(found.scale(other) - found.scale(value)) >= 13)) apart.push(value);
    }
    return apart.length > 1 ? apart : found.scale.ticks(3);
  }
  function tickText(value, digits) {
    const magnitude = Math.abs(value);
    if (value === 0) return "0";
    return magnitude >= 1e5 || magnitude < 1e-3 ? d3.format(`.${digits - 3}~e`)(value).replace("e+", "e") : d3.format(`.${digits}~r`)(value);
  }
  // With as many digits as tell the ticks apart.
  function leftAxis(found) {
    const ticks = ticksOf(found);
    let digits = 4;
    while (digits < 16 && new Set(ticks.map((value) => tickText(value, digits))).size < ticks.length) ++digits;
    return d3.axisLeft(found.scale).tickValues(ticks).tickFormat((value) => tickText(value, digits)).tickSizeOuter(0);
  }

  // curves: [{values, name, colour, band: [low, high]?}]; they share the axis of `domain`.
  function chart(title, curves, domain, strip, { height = 110, WIDTH = PLOT, isLog = 100 } = {}) {
    const figure = make("div", { class: "chart" });
    const found = scaleFor(domain, height, isLog);
    const keys = make("span", { class: "key" }, curves.filter((curve) => curve.name).map((curve) => {
      const line = make("i", {});
      line.style.borderTop = `2px ${curve.dash ? "dashed" : "solid"} ${curve.colour}`;
      return make("span", {}, line, curve.band ? `${curve.name}, and from min to max` : curve.name);
    }));
    figure.append(make("h3", {}, title, found && found.isLog ? " (log)" : "", " "), keys);
    if (!found || curves.length === 0) {
      figure.append(make("p", { class: "note" }, found ? "None." : "No finite value."));
      return figure;
    }
    const svg = d3.create("svg").attr("viewBox", `0 0 ${WIDTH} ${height + 30}`).attr("role", "img")
      .attr("aria-label", `${title} over ${WORD}s ${axis.first} to ${axis.last}`);
    const x = d3.scaleLinear().domain([axis.first, axis.first + axis.columns * axis.replays_per_column]).range([LEFT, WIDTH - RIGHT]);
    const middle = (i) => x(axis.first + (i + 0.5) * axis.replays_per_column);
    const plot = svg.append("g").attr("transform", "translate(0,6)");
    const bottom = plot.append("g").attr("class", "axis").attr("transform", `translate(0,${height})`);
    const half = axis.replays_per_column === 1 ? middle(0) - LEFT : 0;
    bottom.append("g").attr("transform", `translate(${half},0)`)
      .call(d3.axisBottom(x).tickValues(x.ticks(6).filter((tick) => Number.isInteger(tick) && tick <= axis.last)).tickFormat(d3.format("d")).tickSizeOuter(0))
      .select(".domain").attr("transform", `translate(${-half},0)`);  // only the ticks lie in the middle
    plot.append("g").attr("class", "axis").attr("transform", `translate(${LEFT},0)`)
      .call(leftAxis(found));
    // The curve leaves out what is missing or not finite, so these places are marked behind it.
    if (strip) {
      const wide = Math.max(1, middle(1) - middle(0));
      strip.state.forEach((flags, i) => {
        const isBad = at(strip.nan, i) > 0 || at(strip.inf, i) > 0;
        if (!isBad && !(flags & (GAP | UNREAD))) return;
        plot.append("rect").attr("x", middle(i) - wide / 2).attr("width", wide).attr("y", isBad ? -4 : 0).attr("height", isBad ? 4 : height)
          .attr("fill", isBad ? (at(strip.nan, i) > 0 ? colours.nan : colours.inf) : colours.gap).attr("opacity", isBad ? 1 : 0.22);
      });
    }
    for (const curve of curves) {
      const indices = d3.range(axis.columns).filter((i) => !strip || strip.state[i] & THERE);
      if (curve.band) {
        plot.append("path").attr("class", "band").attr("fill", curve.colour).attr("d", d3.area()
          .defined((i) => Number.isFinite(at(curve.band[0], i)) && Number.isFinite(at(curve.band[1], i)))
          .x(middle).y0((i) => found.scale(curve.band[0][i])).y1((i) => found.scale(curve.band[1][i]))(indices));
      }
      if (!curve.values) continue;
      const inScale = (i) => Number.isFinite(curve.values[i]) && (found.linear !== undefined || !found.isLog || curve.values[i] > 0);
      plot.append("path").attr("class", "curve").attr("stroke", curve.colour).attr("stroke-dasharray", curve.dash || null)
        .attr("d", d3.line().defined(inScale).x(middle).y((i) => found.scale(curve.values[i]))(indices));
      // A value with no neighbour would draw no line.
      plot.selectAll(null).data(indices.filter((i, k) => inScale(i) && !(k > 0 && inScale(indices[k - 1])) && !(k + 1 < indices.length && inScale(indices[k + 1]))))
        .enter().append("circle").attr("cx", middle).attr("cy", (i) => found.scale(curve.values[i])).attr("r", 2.5).attr("fill", curve.colour);
    }
    const cursor = plot.append("line").attr("class", "cursor").attr("y1", 0).attr("y2", height);
    if (state.column === null) cursor.attr("visibility", "hidden");
    else cursor.attr("x1", middle(state.column)).attr("x2", middle(state.column));
    const node = svg.node();
    const columnHere = (event) => {
      const box = node.getBoundingClientRect();
      return Math.max(0, Math.min(axis.columns - 1, Math.floor((x.invert(((event.clientX - box.left) / box.width) * WIDTH) - axis.first) / axis.replays_per_column)));
    };
    node.addEventListener("mousemove", (event) => {
      const i = columnHere(event);
      showTip([replaysText(i), ...curves.flatMap((curve) => [
        ...(curve.band ? [`max ${number(at(curve.band[1], i))}`, `min ${number(at(curve.band[0], i))}`] : []),
        ...(curve.values ? [`${curve.name} ${number(curve.values[i])}`] : [])])].join("\n"), event);
    });
    node.addEventListener("mouseleave", hideTip);
    node.addEventListener("click", (event) => pick(state.place, columnHere(event)));
    figure.append(node);
    return figure;
  }

  function histograms(side) {
    const shown = side.histograms.filter((one) => d3.sum(one.counts) > 0);
    const box = make("div", { class: "chart" }, make("h3", {}, "Histogram of the finite values"));
    if (shown.length === 0) {
      const isOfStatistics = side.histograms.some((one) => Number.isFinite(Number(one.min)));
      box.append(make("p", { class: "note" }, isOfStatistics ? "Only statistics were recorded, which have no histogram." : "No finite value was seen."));
      return box;
    }
    const height = 130;
    const edges = shown.flatMap((one) => [Number(one.min), Number(one.max)]);
    const found = scaleFor(edges, height);
    const x = d3.scaleBand().domain(shown.map((one) => one.replay)).range([LEFT, PLOT - RIGHT]).paddingInner(0.12);
    const svg = d3.create("svg").attr("viewBox", `0 0 ${PLOT} ${height + 30}`).attr("role", "img")
      .attr("aria-label", `Histograms of ${shown.length} ${WORD}s, ${shown[0].replay} to ${shown[shown.length - 1].replay}`);
    const plot = svg.append("g").attr("transform", "translate(0,6)");
    plot.append("g").attr("class", "axis").attr("transform", `translate(${LEFT},0)`)
      .call(leftAxis(found));
    const every = Math.ceil(shown.length / 12);
    plot.append("g").attr("class", "axis").attr("transform", `translate(0,${height})`)
      .call(d3.axisBottom(x).tickValues(x.domain().filter((_, i) => i % every === 0)).tickSizeOuter(0));
    for (const one of shown) {
      const min = Number(one.min), max = Number(one.max), total = d3.sum(one.counts), bins = one.counts.length;
      one.counts.forEach((inBin, i) => {
        if (inBin === 0) return;
        const low = min === max ? min : min + ((max - min) * i) / bins, high = min === max ? max : min + ((max - min) * (i + 1)) / bins;
        const top = found.scale(high), bottom = found.scale(low), share = inBin / total;
        // Width and opacity both grow with the share.
        plot.append("rect").attr("x", x(one.replay)).attr("width", Math.max(1, x.bandwidth() * Math.sqrt(share)))
          .attr("y", Math.min(top, bottom) - (min === max ? 1 : 0)).attr("height", Math.max(1.5, Math.abs(bottom - top) - 0.5))
          .attr("fill", colours.accent).attr("opacity", 0.45 + 0.55 * share)
          .append("title").text(`${WORD} ${one.replay}: ${count(inBin)} of ${count(total)} in ${number(low)} .. ${number(high)}`);
      });
    }
    box.append(svg.node(), make("p", { class: "note" },
      `Each block is one eighth between the least and the greatest value of that ${WORD}; its width grows with the number of elements. ${shown.length} of ${count(side.snapshots)} snapshots are drawn.`));
    return box;
  }

  function pictures(side, source) {
    const box = make("div", {}, make("h3", {}, "Values"));
    const picture = side.picture;
    const hint = (text, replay) => box.append(make("p", { class: "note" }, text), command(showCommand(source, side, replay, false)));
    if (picture === null) {
      hint("Left out to keep this file small. To see them:", side.last_replay);
      return box;
    }
    if (typeof picture === "string") {
      box.append(make("p", { class: "note" }, picture));
      return box;
    }
    const reach = Math.asinh(picture.largest / picture.scale);
    const valueOf = (code) => (code === 0 ? NaN : code === 1 ? Infinity : code === 2 ? -Infinity : picture.scale * Math.sinh(((code - 129) / 126) * reach));
    const negative = d3.interpolateRgb(colours.isDark ? "#20242c" : "#f7f7f7", colours.isDark ? "#c29bff" : "#5a2d91");
    const positive = d3.interpolateRgb(colours.isDark ? "#20242c" : "#f7f7f7", colours.isDark ? "#5fd08a" : "#0f6b3a");
    const fill = (code) => (code === 0 ? colours.nan : code <= 2 ? colours.inf : code < 129 ? negative((129 - code) / 126) : positive((code - 129) / 126));
    const zoom = Math.max(1, Math.min(8, Math.floor(400 / picture.columns), Math.max(2, Math.floor(200 / picture.rows))));
    for (const image of picture.images) {
      const codes = bytesOf(image.u1), scale = picture.images.length > 1 ? Math.max(1, Math.floor(zoom / 2)) : zoom;
      const height = picture.rows === 1 ? 16 : picture.rows * scale, tall = height / picture.rows;
      const canvas = make("canvas", { role: "img", "aria-label": `Values of ${image.name} in ${WORD} ${picture.replay}`, width: picture.columns * scale, height });
      const context = canvas.getContext("2d");
      codes.forEach((code, i) => {
        const left = (i % picture.columns) * scale, top = Math.floor(i / picture.columns) * tall;
        context.fillStyle = fill(code);
        context.fillRect(left, top, scale, tall);
        if (code <= 2 && scale >= 3) {
          context.fillStyle = colours.isDark ? "#000" : "#fff";
          context.fillRect(left + scale / 2 - 0.5, top, 1, code === 0 ? tall : tall / 2);
        }
      });
      canvas.addEventListener("mousemove", (event) => {
        const rect = canvas.getBoundingClientRect();
        const column = Math.min(picture.columns - 1, Math.floor(((event.clientX - rect.left) / rect.width) * picture.columns));
        const row = Math.min(picture.rows - 1, Math.floor(((event.clientY - rect.top) / rect.height) * picture.rows));
        const code = codes[row * picture.columns + column];
        showTip(`row ${row * picture.of_height}, column ${column * picture.of_width}\n${code <= 2 ? ["NaN", "+Inf", "-Inf"][code] : "about " + number(valueOf(code))}`, event);
      });
      canvas.addEventListener("mouseleave", hideTip);
      box.append(make("div", { class: "picture" }, canvas, make("p", { class: "note" }, image.name)));
    }
    const block = picture.of_height * picture.of_width;
    box.append(make("p", { class: "note" }, `${WORD[0].toUpperCase()}${WORD.slice(1)} ${picture.replay}` +
      (picture.slices > picture.images.length ? `, ${picture.images.length} of ${count(picture.slices)} slices` : "") +
      (block > 1 ? `. A pixel is ${picture.of_height} x ${picture.of_width} elements and shows the one of largest magnitude, NaN and Inf first` : "") +
      `. Purple is negative, green is positive, up to ${number(picture.largest)}.`));
    return box;
  }

  function statsTable(side, source) {
    const shown = [side.first_bad && ["first NaN or Inf", side.first_bad], side.last && ["last", side.last]].filter(Boolean);
    if (shown.length === 2 && side.first_bad.replay === side.last.replay) shown.shift();
    if (shown.length === 0) return make("p", { class: "note" }, "No snapshot could be read.");
    const names = [["count", "elements"], ["nan", "NaN"], ["pos_inf", "+Inf"], ["neg_inf", "-Inf"], ["zero", "zero"], ["subnormal", "subnormal"], ["min", "min"], ["max", "max"], ["mean", "mean"], ["std", "std"], ["abs_max", "abs max"], ["l1", "L1"], ["l2", "L2"], ["rms", "RMS"]];
    return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Statistics of single ${WORD}s${isTwo ? ` of ${"AB"[source]}` : ""}` }, make("table", {},
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, WORD[0].toUpperCase() + WORD.slice(1)), shown.map(([word, one]) => make("th", { scope: "col" }, `${one.replay}, ${word}`)))),
      make("tbody", {}, names.map(([name, word]) => make("tr", {}, make("th", { scope: "row" }, word),
        shown.map(([, one]) => make("td", {}, Number.isSafeInteger(one[name]) ? count(one[name]) : number(one[name]))))))));
  }

  function factsOf(side, source) {
    const facts = [["tensor", side.type], ["probed at", side.facts.length > 0 ? "" : side.site || "–"], ["graph", `${shownGraph(side)}, place ${side.graph_order} in its order`],
      ["device", side.device || "–"], ...side.facts, ["shard", side.shard], ["session", data.sources[source].sessions.length > 1 ? side.session : ""],
      ["snapshots", side.snapshots === 0 ? "none" : `${count(side.snapshots)}, of ${WORD}s ${side.first_replay}..${side.last_replay}` + (side.every > 1 ? `, every ${side.every}.` : "")],
      ["missing", side.lost > 0 ? `${plural(side.lost, "snapshot")}` : "none"], ["unreadable", side.unread > 0 ? plural(side.unread, "snapshot") : ""],
      [`over ${WORD}s`, `min ${number(side.min)}, max ${number(side.max)}, mean ${number(side.mean)}`],
      ["NaN or Inf", side.nonfinite_snapshots > 0 ? `in ${plural(side.nonfinite_snapshots, "snapshot")}`
        : side.snapshots === side.unread ? "not known: no snapshot was read" : `in none of the ${count(side.snapshots - side.unread)} that were read`]];
    return make("dl", { class: "facts" }, facts.filter(([, value]) => value).map(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]).flat());
  }
  function gapsOf(side) {
    if (side.gap_count === 0) return null;
    return make("div", {}, make("h3", {}, "What is missing"), make("ul", { class: "note" }, side.gaps.map((gap) =>
      make("li", {}, `${plural(gap.count, "snapshot")} ` + (gap.before > 0 ? `between ${WORD}s ${gap.after} and ${gap.before}` : `after ${WORD} ${gap.after}`) + `: ${gap.cause}`)),
      side.gap_count > side.gaps.length ? make("li", {}, `and ${side.gap_count - side.gaps.length} more`) : null));
  }

  function drawDetail() {
    const detail = byId("detail");
    if (state.place === null) {
      detail.replaceChildren(make("h2", { id: "detail-title" }, "No probe"), make("p", { class: "note" }, "Nothing to show."));
      return;
    }
    const line = lines[state.place];
    const parts = [make("h2", { id: "detail-title", tabindex: -1 }, line.name)];
    const findings = [...line.side.findings.map((one) => [one.text, one.bad])];
    if (line.difference && line.difference.different > 0) {
      const apart = line.difference;
      findings.push([`differs in ${count(apart.different)} of ${plural(apart.compared, "snapshot")}, first in ${WORD} ${apart.first_different}` +
        (apart.has_values && apart.max_abs > 0 ? `, by up to ${number(apart.max_abs)} (relative ${number(apart.max_rel)})` : "") +
        (apart.with_nonfinite > 0 ? `; ${apart.with_nonfinite} of them by NaN or Inf` : ""), true]);
    } else if (line.difference && line.difference.compared > 0) {
      findings.push([`equal in ${plural(line.difference.equal, "snapshot")}`, false]);
    }
    if (line.difference && line.difference.not_compared > 0) findings.push([`${plural(line.difference.not_compared, "snapshot")} not compared`, false]);
    if (isTwo && !(line.a && line.b)) findings.push([`only in ${line.a ? "A" : "B"}`, true]);
    if (findings.length) parts.push(make("ul", { class: "findings" }, findings.map(([text, isBad]) => make("li", { class: isBad ? "bad" : "" }, text))));
    const sides = [[line.a, 0, "a"], [line.b, 1, "b"]].filter(([side]) => side);
    measure(sides.length);
    const box = make("div", { class: sides.length > 1 ? "sides" : "sides one" });
    const all = (pickValues) => sides.flatMap(([, , which]) => pickValues(line.strips[which]).filter(Boolean).flatMap((values) => Array.from(values)));
    const ranges = all((strip) => [strip.min, strip.max]);
    const magnitudes = all((strip) => [strip.absMax, strip.std]).filter((value) => value > 0);
    const here = state.column;
    const each = (draw) => box.append(...sides.map(([side, source, which]) => {
      const node = draw(side, source, line.strips[which], which);
      if (node instanceof Element && isTwo && node.childNodes.length > 0) node.dataset.side = "AB"[source];
      return node;
    }));
    if (isTwo) each((side, source, strip, which) => make("p", { class: "side-name " + which }, `${"AB"[source]} ${data.sources[source].name}`));
    each((side) => factsOf(side, data.sources.indexOf(side) < 0 ? (side === line.a ? 0 : 1) : 0));
    if (here !== null && axis.columns > 0) {
      const [replay] = replaysOf(here);
      each((side, source, strip) => {
        const cell = cellOf([strip], here, here + 1);
        const words = [];
        if (cell.nan > 0) words.push(`${count(cell.nan)} NaN`);
        if (cell.inf > 0) words.push(`${count(cell.inf)} Inf`);
        if (cell.state & THERE) words.push(`abs max ${number(cell.value)}, min ${number(at(strip.min, here))}, max ${number(at(strip.max, here))}, mean ${number(at(strip.mean, here))}, std ${number(at(strip.std, here))}`);
        if (cell.state & GAP) words.push("snapshots are missing here");
        if (cell.state & UNREAD) words.push("a snapshot cannot be read");
        if (cell.state === 0) words.push("no snapshot");
        return make("div", {}, make("h3", {}, replaysText(here)[0].toUpperCase() + replaysText(here).slice(1)), make("p", { class: "here" }, words.join("; ")),
          cell.state & THERE ? command((axis.replays_per_column === 1 ? showCommand : columnCommand)(source, side, axis.replays_per_column === 1 ? replay : here, cell.nan + cell.inf > 0)) : null);
      });
    }
    if (axis.columns > 0 && ranges.some(Number.isFinite)) {
      each((side, source, strip) => chart("min, mean, max", [{ values: strip.mean, name: "mean", colour: colours.accent, band: [strip.min, strip.max] }], ranges, strip));
      each((side, source, strip) => chart("abs max and std", [{ values: strip.absMax, name: "abs max", colour: colours.accent },
        { values: strip.std, name: "std", colour: colours.isDark ? "#ffb057" : "#a14c00", dash: "5 3" }], magnitudes, strip));
    }
    const bad = all((strip) => [strip.nan, strip.inf]).filter((value) => value > 0);
    if (bad.length) {
      const filled = (values) => values && Float64Array.from(values, (value) => (Number.isNaN(value) ? 0 : value));
      each((side, source, strip) => chart("NaN and Inf elements", [{ values: filled(strip.nan), name: "NaN", colour: colours.nan }, { values: filled(strip.inf), name: "Inf", colour: colours.inf, dash: "5 3" }].filter((curve) => curve.values), [0, ...bad], null, { height: 70, isLog: 10 }));
    }
    const apart = line.strips.difference;
    if (apart && apart.max_abs) {
      const wide = chart("greatest difference of A and B", [{ values: apart.max_abs, name: "max |A - B|", colour: colours.different }], Array.from(apart.max_abs).filter((value) => value > 0), null, { height: 90, WIDTH: WIDE });
      wide.classList.add("wide");
      box.append(wide);
    }
    each((side) => histograms(side));
    each((side, source) => pictures(side, source));
    each((side, source) => make("div", {}, make("h3", {}, `Statistics of one ${WORD}`), statsTable(side, source)));
    each((side) => gapsOf(side) || make("div", {}));
    parts.push(box);
    detail.replaceChildren(...parts);
  }

  // --- what the user does ---------------------------------------------------------------------------

  function pick(place, column) {
    state.place = place;
    state.column = column;
    markCurrent();
    repaint();
    drawDetail();
  }
  function focusOn(row) {
    if (!row) return;
    row.firstElementChild.focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
    if (row.dataset.place !== undefined) pick(Number(row.dataset.place), state.column);
  }
  const rowOfPlace = (place) => byId("rows").querySelector(`.row[data-place="${place}"]`);
  function goTo(line) {
    if (!rowOfPlace(line.place)) {
      byId("search").value = "";
      byId("only-findings").checked = false;
      groups.filter((group) => group.lines.includes(line)).forEach((group) => state.folded.set(group, false));
      drawRows();
    }
    const first = line.side.first_bad ? parseInt(line.side.first_bad.replay, 10)
      : line.difference && line.difference.first_different !== null ? line.difference.first_different
      : line.side.findings.length ? line.side.findings[0].replay : null;
    if (first !== null && axis.columns > 0) state.column = columnOf(first);
    focusOn(rowOfPlace(line.place));
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = /^(INPUT|SELECT)$/.test(event.target.tagName) && event.target.type !== "checkbox";
    if (event.key === "Escape" && isTyping) {
      byId("search").value = "";
      drawRows();
      focusOn(rowOfPlace(state.place) || byId("rows").firstElementChild);
    }
    if (isTyping && !(event.key === "ArrowDown" && event.target.id === "search")) return;
    const rows = [...byId("rows").children];
    const focused = rows.findIndex((row) => row.contains(document.activeElement));
    const current = focused >= 0 ? focused : rows.findIndex((row) => row.classList.contains("current"));
    if (event.key === "ArrowDown") focusOn(rows[Math.min(rows.length - 1, current + 1)]);
    else if (event.key === "ArrowUp") focusOn(rows[Math.max(0, current - 1)]);
    else if ((event.key === "ArrowLeft" || event.key === "ArrowRight") && axis.columns > 0) {
      if (event.target.closest("pre, code, .scroll")) return;
      const step = (event.key === "ArrowLeft" ? -1 : 1) * (event.shiftKey ? 10 : 1);
      pick(state.place, Math.max(0, Math.min(axis.columns - 1, (state.column ?? 0) + step)));
    } else if (event.key === "n") {
      goToNext();
    } else if (event.key === "/") byId("search").focus();
    else return;
    event.preventDefault();
  });
  function goToNext() {
    const after = [...lines.slice((state.place ?? -1) + 1), ...lines.slice(0, (state.place ?? -1) + 1)];
    const next = after.find((line) => line.isBad);
    if (next) goTo(next);
  }
  byId("next-finding").addEventListener("click", goToNext);
  byId("next-finding").hidden = !lines.some((line) => line.isBad);
  byId("search").addEventListener("input", drawRows);
  byId("only-findings").addEventListener("change", drawRows);
  byId("mode").addEventListener("change", () => { drawLegend(); repaint(); });
  for (const [id, folds] of [["fold", true], ["unfold", false]]) {
    byId(id).addEventListener("click", () => {
      groups.forEach((group) => state.folded.set(group, folds));
      drawRows();
    });
  }
  function redraw() {
    readColours();
    drawHeads();
    drawLegend();
    repaint();
    drawDetail();
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width === innerWidth) return;
    width = innerWidth;
    drawHeads();
    repaint();
    drawDetail();
  });

  readColours();
  makeScales();
  drawVerdict();
  const mostRoom = innerWidth > 1800 ? 60 : innerWidth > 560 ? 34 : 18;
  longest = Math.min(mostRoom, d3.max(lines, (line) => widthOf(line.name)) || 10);
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `13px ${getComputedStyle(document.body).fontFamily}`;
  const widest = d3.max(lines, (line) => pen.measureText(inRoom(line.name)).width) || 60;
  document.documentElement.style.setProperty("--names", `${Math.ceil(widest) + 34}px`);
  document.documentElement.style.setProperty("--row", lines.length > 60 ? "18px" : "22px");
  if (!isGrouped || !groups.some((group) => group.lines.length > 1)) document.querySelector(".folds").hidden = true;
  drawHeads();
  drawLegend();
  const first = data.verdict.place !== null ? lines[data.verdict.place] : lines[0];
  if (first) {
    state.place = first.place;
    if (data.verdict.place !== null && axis.columns > 0) state.column = columnOf(data.verdict.replay);
    const group = groups.find((one) => one.lines.includes(first));
    state.folded.set(group, false);
  }
  drawRows();
  drawDetail();
  const current = rowOfPlace(state.place);
  if (current) byId("rows").scrollTop = current.offsetTop - byId("rows").clientHeight / 2;
})();
