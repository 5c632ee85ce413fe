// The charts of a page are drawn from its table of numbers: whoever does not see them reads the
// table. They are drawn again when the page has loaded its content again, when its width changes,
// and when the colors do.
(function () {
  let drawn = [];
  let width = 0;

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function column(rows, name) {
    return rows.map(function (row) {
      const text = row.querySelector('[data-column="' + name + '"]').textContent;
      return text === "" ? null : Number(text);
    });
  }

  // Few values are points as well: a line has no length between one value and nothing.
  const few = 40;

  function options(chart, names, count, table) {
    const axis = { stroke: color("--fg"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
    const days = table.dataset.to - table.dataset.from > 86400;
    function clock(seconds) { // in UTC, as the table
      const text = new Date(seconds * 1000).toISOString();
      return days ? text.slice(5, 10) : text.slice(11, 16);
    }
    const lines = [{ stroke: color("--mark") }, { stroke: color("--now"), dash: [6, 4] }];
    return {
      width: chart.clientWidth, height: 180, legend: { show: false }, cursor: { show: false },
      tzDate: function (seconds) { return uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"); },
      scales: { x: { range: [Number(table.dataset.from), Number(table.dataset.to)] }, y: { range: function (u, low, high) { return [0, high > 0 ? high * 1.1 : 1]; } } },
      axes: [Object.assign({ values: function (u, times) { return times.map(clock); }, space: 60 }, axis), Object.assign({ size: 56 }, axis)],
      series: [{}].concat(names.map(function (name, i) {
        const points = "points" in chart.dataset;
        return Object.assign({
          width: 2, spanGaps: points, points: { show: points || count < few, size: 6, fill: lines[i].stroke },
          paths: "steps" in chart.dataset ? uPlot.paths.stepped({ align: 1 }) : undefined,
        }, lines[i]);
      })),
    };
  }

  function draw() {
    drawn.forEach(function (u) { u.destroy(); });
    drawn = [];
    width = document.documentElement.clientWidth;
    const table = document.getElementById("recorded");
    if (!table) { return; }
    const rows = Array.from(table.tBodies[0].rows);
    const times = rows.map(function (row) { return Number(row.dataset.time); });
    document.querySelectorAll(".chart").forEach(function (chart) {
      const names = chart.dataset.columns.split(" ");
      const data = [times].concat(names.map(function (name) { return column(rows, name); }));
      drawn.push(new uPlot(options(chart, names, times.length, table), data, chart));
    });
  }

  draw();
  document.addEventListener("htmx:afterSettle", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("resize", function () {
    if (document.documentElement.clientWidth !== width) { draw(); }
  });
})();
