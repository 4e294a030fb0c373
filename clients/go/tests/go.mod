module rowmq/tests

go 1.21

require (
	filippo.io/edwards25519 v1.1.0 // indirect
	github.com/go-sql-driver/mysql v1.9.0
	rowmq v0.0.0
)

replace rowmq => ../
