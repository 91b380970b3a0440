// A kernel that runs a cell hears no message of a widget, but the Jupyter server can interrupt it, as its own stop button does.
// Only the widget has this; the HTML file asks nobody for anything.
async function harnesslabInterrupt(kernel) {
  const config = JSON.parse(document.getElementById("jupyter-config-data").textContent);
  const headers = { "X-XSRFToken": (document.cookie.match(/(?:^|; )_xsrf=([^;]*)/) || ["", ""])[1] };
  if (config.token) headers.Authorization = `token ${config.token}`;
  const url = `${config.baseUrl}api/kernels/${encodeURIComponent(kernel)}/interrupt`;
  const answer = await fetch(url, { method: "POST", headers, credentials: "same-origin" });
  if (!answer.ok) throw new Error(answer.status);
}
