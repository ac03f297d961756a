function cartTotal(n) {
  let s = 0;
  for (let i = 0; i < n; i++) s = (s * 31 + i) % 1000003;
  return s;
}

function cartCheckout() {
  return cartTotal(1000) * 2;
}

for (;;) cartCheckout();
