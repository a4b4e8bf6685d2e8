// Browsers start no worker for a page that was opened from the disk, so the search of such a page
// runs in a hidden frame instead, which has the interface of a worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inner = this.frame.contentWindow
      inner.document.write("<body></body>")
      inner.document.close()
      inner.postMessage = data => setTimeout(() => this.receive(data))
      inner.importScripts = (...urls) =>
        urls.reduce((ready, one) => ready.then(() => this.load(one)), Promise.resolve())
      this.ready = this.load(url)
    }
    load(url) {
      const script = this.frame.contentDocument.createElement("script")
      script.src = new URL(url, location)
      return new Promise((resolve, reject) => {
        script.onload = resolve
        script.onerror = reject
        this.frame.contentDocument.body.append(script)
      })
    }
    receive(data) {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      this.onmessage?.(event)
    }
    postMessage(data) {
      this.ready.then(() =>
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
