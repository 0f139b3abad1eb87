// Asks as a page would. Arguments: the module of docs/clients.md, how ("stream", "watch", "leave"), gateways' addresses.
// Prints what was heard as one line of JSON.

const [module, how, ...urls] = process.argv.slice(2);
const { stream } = await import(module);

const heard = { text: "", pieces: 0, bytes: 0 };

function hear(field, data) {
  heard.pieces++;
  if (field === "text") heard.text += data;
  else heard.bytes += data.length;
}

if (how === "stream") {
  const answer = stream(urls, "spoken_answer", { text: "hello" }, { deadline: 30 });
  for (;;) {
    const { done, value } = await answer.next();
    if (done) {
      heard.response = value;
      break;
    }
    hear(value.field, value.data);
  }
}

if (how === "leave") {
  for await (const { field, data } of stream(urls, "spoken_answer", { text: "Answer slowly." })) {
    hear(field, data);
    break;
  }
}

if (how === "watch") {
  const first = await fetch(`${urls[1]}/apps/spoken_answer`, {
    method: "POST",
    headers: { Accept: "text/event-stream", "Content-Type": "application/json", "Cornstalk-Resume-Grace": "60" },
    body: JSON.stringify({ text: "hello", speak: false }),
  });
  const request = first.headers.get("Cornstalk-Request");
  await first.body.cancel();
  const alive = setInterval(() => {}, 1000); // EventSource does not keep the process while it waits to connect again
  const source = new EventSource(`${urls[0]}/requests/${request}/events`);
  source.addEventListener("chunk", (event) => hear("text", JSON.parse(event.data).data));
  heard.response = await new Promise((resolve, reject) => {
    source.addEventListener("end", (event) => resolve(JSON.parse(event.data).response));
    source.addEventListener("error", (event) => event.data && reject(new Error(event.data)));
  });
  source.close();
  clearInterval(alive);
}

console.log(JSON.stringify(heard));
