/** The time in seconds, told once a second: for ages. */
class Clock {
  now = $state(Date.now() / 1000);

  start(): void {
    setInterval(() => {
      this.now = Date.now() / 1000;
    }, 1000);
  }
}

export const clock = new Clock();
