for (const photo of document.querySelectorAll("[data-photo]")) {
  const targets = photo.querySelectorAll("[data-target]");
  photo.querySelector("[data-chooser]").addEventListener("change", event => {
    for (const target of targets) target.hidden = target.dataset.target !== event.target.value;
  });
  for (const target of targets) {
    const evidence = target.querySelector("[data-evidence]");
    target.querySelector("[data-slider]").addEventListener("input", event => {
      evidence.style.opacity = event.target.value / 100;
    });
  }
}
