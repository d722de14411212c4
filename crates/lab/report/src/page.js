(() => {
  // Hands a URL to the browser as a file with a name.
  const save = (href, name) => {
    const a = document.createElement('a');
    a.href = href;
    a.download = name;
    document.body.append(a);
    a.click();
    a.remove();
  };
  const keep = (blob, name) => {
    const href = URL.createObjectURL(blob);
    save(href, name);
    setTimeout(() => URL.revokeObjectURL(href), 60000);
  };
  // The chart on white at its own size: the colours of the page's scheme are not part of it.
  const source = (svg) => {
    const { width, height } = svg.viewBox.baseVal;
    const copy = svg.cloneNode(true);
    copy.setAttribute('width', width);
    copy.setAttribute('height', height);
    const paper = document.createElementNS('http://www.w3.org/2000/svg', 'rect');
    for (const [k, v] of [['width', width], ['height', height], ['fill', '#fff']]) paper.setAttribute(k, v);
    copy.prepend(paper);
    return { text: new XMLSerializer().serializeToString(copy), width, height };
  };
  const png = (svg, name) => {
    const { text, width, height } = source(svg);
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement('canvas');
      canvas.width = width * 3;
      canvas.height = height * 3;
      canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => blob && keep(blob, name), 'image/png');
    };
    image.src = 'data:image/svg+xml;charset=utf-8,' + encodeURIComponent(text);
  };
  document.querySelectorAll('figure').forEach((figure, i) => {
    const svg = figure.querySelector('svg');
    const bar = figure.querySelector('.save');
    if (!svg || !bar) return;
    const name = figure.dataset.name || 'chart-' + (i + 1);
    const add = (label, action) => {
      const button = document.createElement('button');
      button.type = 'button';
      button.textContent = label;
      button.title = 'Save this chart as ' + label;
      button.onclick = action;
      bar.append(button);
    };
    add('SVG', () => keep(new Blob([source(svg).text], { type: 'image/svg+xml' }), name + '.svg'));
    add('PNG', () => png(svg, name + '.png'));
  });
  let opened = [];
  addEventListener('beforeprint', () => {
    opened = [...document.querySelectorAll('details:not([open])')];
    for (const d of opened) d.open = true;
  });
  addEventListener('afterprint', () => {
    for (const d of opened) d.open = false;
  });
})();
