module punctual.dev/go

go 1.23
