"""The page of `equipoise advise`: forecasts by rate, and the rates to take."""
