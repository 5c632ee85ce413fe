package signer

// InMemory is inMemory.
var InMemory = inMemory
