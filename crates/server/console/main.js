// The entry of the console.
document.body.textContent = 'Punctual';
