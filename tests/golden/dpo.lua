-- dpo.lua - made by make_dpo.py (trl 1.16.0, torch 2.8.0, transformers 4.57.1).
return {
  pairs = {
    { prompt = 'ABC', chosen = 'DEFG', rejected = 'HI' },
    { prompt = 'Q', chosen = 'RSTUVWXYZ', rejected = 'ZYXWVUT' },
    { prompt = 'HELLO', chosen = 'B', rejected = 'WORLD' },
    { prompt = 'AZ', chosen = 'ZA', rejected = 'ZAZAZAZA' },
  },
  loss = 1.53237712, norm = 18.533869,
  margin = -1.1249094, chosen = -0.705456972,
  accuracy = 0.25,
}
