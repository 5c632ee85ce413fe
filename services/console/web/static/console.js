// A page follows the mesh only while its reader does nothing in it: a form that is filled in,
// and a link that has the focus, stay.
document.addEventListener("htmx:beforeRequest", function (event) {
  const main = document.getElementById("main");
  const active = document.activeElement;
  const selected = window.getSelection();
  if (main && event.target === main &&
      ((active && active !== main && main.contains(active)) || (selected && !selected.isCollapsed) || document.hidden)) {
    event.preventDefault();
  }
});
