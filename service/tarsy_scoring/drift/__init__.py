"""Whether the agents changed or the judge did: anchors, looks at changes, and what is told of them."""
