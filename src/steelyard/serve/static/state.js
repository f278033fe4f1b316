// All that a page shows is in its address: it can be shared, reloaded, and gone back to.
//   /?w=dog&n=car&q=…&t=dog:0.5&like=…&item=…    present, absent, query text, limits, like an item, the item that is open
//   /label?name=…                         a label
//   /data                                 all labels
//   /review                               questions to answer

export const EMPTY = Object.freeze({ page: "search", present: [], absent: [], text: "", limits: {}, like: null, item: null, name: null });

const PAGES = { "/": "search", "/label": "label", "/data": "data", "/review": "review" };

export function read(location) {
  const query = new URLSearchParams(location.search);
  const present = [...new Set(query.getAll("w"))];
  const absent = [...new Set(query.getAll("n"))].filter((label) => !present.includes(label));
  const limits = {};
  for (const text of query.getAll("t")) {
    const cut = text.lastIndexOf(":");
    const value = Number(text.slice(cut + 1));
    if (cut > 0 && value >= 0 && value <= 1) limits[text.slice(0, cut)] = value;
  }
  return {
    page: PAGES[location.pathname] ?? "search",
    present, absent, limits,
    text: query.get("q") ?? "",
    like: query.get("like"),
    item: query.get("item"),
    name: query.get("name"),
  };
}

export function write(state) {
  const query = new URLSearchParams();
  if (state.page === "label") query.set("name", state.name);
  for (const label of state.present) query.append("w", label);
  for (const label of state.absent) query.append("n", label);
  if (state.text) query.set("q", state.text);
  for (const [label, value] of Object.entries(state.limits)) {
    if (state.present.includes(label) || state.absent.includes(label)) query.append("t", `${label}:${value}`);
  }
  if (state.like !== null) query.set("like", state.like);
  if (state.item !== null) query.set("item", state.item);
  const path = { search: "/", label: "/label", data: "/data", review: "/review" }[state.page];
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

export const isEmpty = (state) => state.present.length + state.absent.length === 0 && state.text === "" && state.like === null;

/** What the API is asked for, the same for two states that differ only in the item that is open. */
export const question = (state) => ({
  q: state.text,
  like: state.like,
  present: state.present,
  absent: state.absent,
  limit: Object.entries(state.limits)
    .filter(([label]) => state.present.includes(label) || state.absent.includes(label))
    .map(([label, value]) => `${label}:${value}`),
});

/** The state with a label present, absent or ("none") neither. */
export function marked(state, label, how) {
  const present = state.present.filter((one) => one !== label);
  const absent = state.absent.filter((one) => one !== label);
  const limits = { ...state.limits };
  delete limits[label];
  if (how === "present") present.push(label);
  if (how === "absent") absent.push(label);
  return { ...state, present, absent, limits, item: null };
}
