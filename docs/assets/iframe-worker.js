/* Search without a server. Browsers start no Web Worker for a page that was opened from the file system, so there an
   <iframe> stands in for the one that Material's search asks for. Elsewhere the browser's own Worker is used. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.onmessage = null
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inside = this.frame.contentWindow
      // What a worker has and a window has not, or has otherwise.
      inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => load(inside, each)), Promise.resolve())
      inside.postMessage = data => queueMicrotask(() => this.tell(data))
      load(inside, new URL(url, location.href).href).then(() => {
        this.loaded = true
        for (const data of this.waiting.splice(0)) this.deliver(data)
      })
    }

    postMessage(data) {
      if (this.loaded) this.deliver(data)
      else this.waiting.push(data)
    }

    deliver(data) {
      const inside = this.frame.contentWindow
      queueMicrotask(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
    }

    tell(data) {
      const message = new MessageEvent("message", { data })
      this.dispatchEvent(message)
      if (this.onmessage) this.onmessage(message)
    }

    terminate() {
      this.frame.remove()
    }
  }

  function load(inside, url) {
    return new Promise((resolve, reject) => {
      const script = inside.document.createElement("script")
      script.src = url
      script.onload = resolve
      script.onerror = reject
      inside.document.body.appendChild(script)
    })
  }
}
