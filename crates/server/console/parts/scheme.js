// Light, dark, or what the system has. `scheme` counts up when the colours of the page change.

import { signal } from './signal.js';

const STORED = 'punctual.scheme';

export const SCHEMES = [['', 'System'], ['light', 'Light'], ['dark', 'Dark']];
export const scheme = signal(0);
export const chosenScheme = () => localStorage.getItem(STORED) ?? '';

export function setScheme(name) {
  localStorage.setItem(STORED, name);
  document.documentElement.dataset.scheme = name;
  scheme.value += 1;
}

setScheme(chosenScheme());
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => (scheme.value += 1));
